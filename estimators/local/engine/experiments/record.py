"""The record of an experiment, a trial or a trial component.

Changes need the lock of `Experiments`, except changes of tags. The members are replaced, never modified: a thread that
saves the record after a change of its tags sees them whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, TypeVar

from estimators.local.engine.errors import ApiError, invalid
from estimators.local.engine.experiments.job_component import JobNow
from estimators.local.engine.hosted.metric_statistics import MetricSummary
from estimators.local.engine.records import Record, RecordKind
from estimators.service_model import service_model

AnyEntity = TypeVar("AnyEntity", bound="EntityRecord")


class EntityKind(RecordKind):
    """A kind of entity. Names have no case, and AWS's errors show ARNs."""

    def key_of(self, name: str) -> str:
        """Return the name in lower case."""
        return name.lower()

    def missing(self, name: str, arn: str) -> ApiError:  # noqa: ARG002  # AWS shows the ARN
        """Return the error for an absent entity."""
        said = f"{self.word} '{arn}' does not exist: create it with Create{self.word}, or name another one."
        return ApiError("ResourceNotFound", said)

    def taken(self, name: str, arn: str) -> ApiError:  # noqa: ARG002  # AWS shows the ARN
        """Return the error for a name that another entity has."""
        return invalid(f"{self.word} names are unique, whatever their case: {self.word} '{arn}' already exists.")


EXPERIMENT = EntityKind(word="Experiment", resource="experiment", key="experiment")
TRIAL = EntityKind(word="Trial", resource="experiment-trial", key="experiment-trial")
COMPONENT = EntityKind(word="TrialComponent", resource="experiment-trial-component", key="experiment-trial-component")

_TIMES = ("StartTime", "EndTime")
_MAPS = {
    "Parameters": "TrialComponentParameters",
    "InputArtifacts": "TrialComponentArtifacts",
    "OutputArtifacts": "TrialComponentArtifacts",
}
"""Members of a trial component that are updated entry by entry, and their shapes in the model."""


class EntityRecord(Record):
    """The record of an experiment, a trial or a trial component from its creation on."""

    def __init__(
        self,
        kind: EntityKind,
        name: str,
        arn: str,
        members: Mapping[str, Any],  # of the description, besides name, ARN and times of changes; times as datetimes
        tags: Mapping[str, str],
    ) -> None:
        super().__init__(name, arn, tags)
        self.kind: EntityKind = kind
        self.members = members
        self.created = self.modified = datetime.now(timezone.utc)

    @classmethod
    def from_json(cls: type[AnyEntity], kind: EntityKind, document: Mapping[str, Any]) -> AnyEntity:
        """Return an entity of an earlier platform from its `to_json` document, with times as text."""
        entity = cls(kind, document["name"], document["arn"], document["members"], document["tags"])
        entity._restore(document)
        return entity

    def _restore(self, document: Mapping[str, Any]) -> None:
        super()._restore(document)
        times = {name: datetime.fromisoformat(self.members[name]) for name in _TIMES if name in self.members}
        self.members = {**self.members, **times}
        self.created = datetime.fromisoformat(document["created"])
        self.modified = datetime.fromisoformat(document["modified"])

    def to_json(self) -> dict[str, Any]:
        """Return the document to save, with times as datetimes."""
        return {
            **super().to_json(),
            "name": self.name,
            "members": self.members,
            "created": self.created,
            "modified": self.modified,
        }

    def change(self, members: Mapping[str, Any]) -> None:
        """Replace members, and save the record."""
        with self._lock:
            self.members = {**self.members, **members}
            self.modified = datetime.now(timezone.utc)
            self.note()

    def describe(self) -> dict[str, Any]:
        """Return the description as AWS shows it."""
        return {
            f"{self.kind.word}Name": self.name,
            f"{self.kind.word}Arn": self.arn,
            "DisplayName": self.name,
            **self.members,
            "CreationTime": self.created,
            "LastModifiedTime": self.modified,
        }


class ComponentRecord(EntityRecord):
    """The record of a trial component: its logged values, its trials, and the job that it follows."""

    trials: tuple[str, ...] = ()
    """The names of its trials."""
    follows: str = ""
    """The ARN of the job whose state and metrics it shows until the job has ended; empty: it shows its own."""
    run: str = ""
    """ExperimentConfig.RunName of its job: the name of the run's component."""
    metrics: Mapping[tuple[str, str], MetricSummary] = MappingProxyType({})
    """By the ARN of the values' sender, and the metric's name."""

    def to_json(self) -> dict[str, Any]:
        """Return the document to save, with times as datetimes."""
        metrics = [[source, name, summary.to_json()] for (source, name), summary in self.metrics.items()]
        own = {"trials": self.trials, "follows": self.follows, "run": self.run, "metrics": metrics}
        return {**super().to_json(), **own}

    def _restore(self, document: Mapping[str, Any]) -> None:
        super()._restore(document)
        self.trials, self.follows, self.run = tuple(document["trials"]), document["follows"], document["run"]
        self.metrics = {
            (source, name): MetricSummary.from_json(summary) for source, name, summary in document["metrics"]
        }

    @property
    def source(self) -> str:
        """The ARN of its job; empty if it is not a job's component."""
        arn: str = self.members.get("Source", {}).get("SourceArn", "")
        return arn

    def settle(self, job: JobNow) -> None:
        """Copy the final state of the ended job; from now on all members can change, and outlive the job."""
        with self._lock:
            self.members = self._members_with(job)
            self.metrics = {**self.metrics, **job.metrics}
            self.modified = max(self.modified, job.modified)
            self.follows = ""
            self.note()

    def update(self, members: Mapping[str, Any]) -> None:
        """Change members as UpdateTrialComponent does, maps entry by entry; raise ApiError for too many entries."""
        changed = {name: value for name, value in members.items() if not name.endswith("ToRemove")}
        for name, shape in _MAPS.items():
            kept = {
                key: value
                for key, value in self.members.get(name, {}).items()
                if key not in members.get(f"{name}ToRemove", ())
            }
            entries = {**kept, **members.get(name, {})}
            most = service_model().shape_for(shape).metadata["max"]
            if len(entries) > most:
                raise invalid(f"{self.name} would have {len(entries)} {name}; {most} is the limit.")
            if entries or name in self.members:
                changed[name] = entries
        self.change(changed)

    def associate(self, trials: Iterable[str]) -> None:
        """Replace the component's trials."""
        with self._lock:
            self.trials = tuple(dict.fromkeys(trials))
            self.change({})

    def add_metric(self, name: str, value: float, time: datetime) -> None:
        """Add a value; after the last one, the caller calls `change` to save them."""
        before = self.metrics.get((self.arn, name))
        summary = MetricSummary.of(value, time) if before is None else before.added(value, time)
        self.metrics = {**self.metrics, (self.arn, name): summary}

    def show(self, job: JobNow | None) -> dict[str, Any]:
        """Return the description as AWS shows it, with the state of the job that it follows, if any."""
        described = {**self.describe(), **(self._members_with(job) if job else {})}
        if job is not None:
            described["LastModifiedTime"] = max(self.modified, job.modified)
        metrics = {**self.metrics, **(job.metrics if job else {})}
        return {
            **described,
            "Metrics": [
                {"MetricName": name, "SourceArn": source, **summary.describe()}
                for (source, name), summary in metrics.items()
            ],
        }

    def _members_with(self, job: JobNow) -> dict[str, Any]:
        outputs = {**self.members.get("OutputArtifacts", {}), **job.outputs}
        return {**self.members, **job.state, **({"OutputArtifacts": outputs} if outputs else {})}
