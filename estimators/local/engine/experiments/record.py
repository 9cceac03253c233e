"""The records of experiments, trials and trial components: one, all of a kind, and all of a platform.

`EntityRecords` are the entities of one kind, `Entities` are all entities, with the jobs that components follow. Changes
need the lock of `Experiments`, except changes of tags. The members are replaced, never modified: a thread that saves
the record after a change of its tags sees them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, TypeVar

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.errors import ApiError, invalid
from estimators.local.engine.experiments.job_component import JobNow
from estimators.local.engine.hosted.metric_statistics import MetricSummary
from estimators.local.engine.hosted.record import HostedRecord
from estimators.local.engine.hosted.request import HostedRequest
from estimators.local.engine.listing import cut_page
from estimators.local.engine.records import Record, RecordKind, Records, RecordStore
from estimators.service_model import service_model

AnyEntity = TypeVar("AnyEntity", bound="EntityRecord")

FindJob = Callable[[str], "HostedRecord[HostedRequest] | None"]
"""Returns the training or processing job of an ARN, or None."""


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


class EntityRecords(Records[AnyEntity]):
    """The entities of one kind, including entities of earlier platforms in the store."""

    def __init__(self, kind: EntityKind, entity: type[AnyEntity], arn_prefix: str, store: RecordStore) -> None:
        super().__init__(kind, arn_prefix, store, lambda document: entity.from_json(kind, document))
        self._entity_kind = kind
        self._entity = entity

    def make(self, name: str, members: Mapping[str, Any], tags: Mapping[str, str]) -> AnyEntity:
        """Return a new entity for `add`."""
        return self._entity(self._entity_kind, name, self.arn(name), members, tags)

    def page(
        self, described: Iterable[Mapping[str, Any]], request: Mapping[str, Any], shown: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return one page of the descriptions; raise ApiError for an invalid NextToken.

        ``shown`` maps further members of a summary to members of a description.
        """
        word = self._kind.word
        sort_by = f"{word}Name" if request.get("SortBy") == "Name" else "CreationTime"
        wanted = [each for each in described if _is_in_time(each, request)]
        page, token = cut_page(wanted, sort_by, {"SortOrder": "Descending"} | dict(request), name=f"{word}Name")
        names = {f"{word}Name": f"{word}Name", f"{word}Arn": f"{word}Arn", "DisplayName": "DisplayName", **shown}
        names |= {"CreationTime": "CreationTime", "LastModifiedTime": "LastModifiedTime"}
        summaries = [{to: each[name] for to, name in names.items() if name in each} for each in page]
        return {f"{word}Summaries": summaries, **token}


class Entities:
    """All entities; callers have locked `Experiments`. The arguments are the same as for `Experiments`."""

    def __init__(self, arn_prefix: str, store: RecordStore, find_job: FindJob) -> None:
        self.experiments = EntityRecords(EXPERIMENT, EntityRecord, arn_prefix, store)
        self.trials = EntityRecords(TRIAL, EntityRecord, arn_prefix, store)
        self.components = EntityRecords(COMPONENT, ComponentRecord, arn_prefix, store)
        self.find_job = find_job

    def find(self, arn: str) -> EntityRecord | None:
        """Return the entity of an ARN, or None."""
        return self.experiments.find_arn(arn) or self.trials.find_arn(arn) or self.components.find_arn(arn)

    def trials_of(self, experiment: EntityRecord) -> list[EntityRecord]:
        """Return the trials of an experiment."""
        return [each for each in self.trials.all() if each.members["ExperimentName"] == experiment.name]

    def settled(self) -> list[ComponentRecord]:
        """Return all components, each with the final state of its job if that has ended."""
        return [self.settle(component) for component in self.components.all()]

    def settle(self, component: ComponentRecord) -> ComponentRecord:
        """Copy the final state of the component's job, if the job has ended; return the component."""
        job = self._job_of(component)
        # A job that the platform's end breaks off may go on with the next platform.
        if job is not None and job.ended and not job.closed:
            component.settle(JobNow.of(job))
        return component

    def show(self, component: ComponentRecord) -> dict[str, Any]:
        """Return the description of a component, with the state of the job that it follows."""
        job = self._job_of(component)
        return component.show(None if job is None else JobNow.of(job))

    def search_records(self, resource: str) -> list[dict[str, Any]]:
        """Return the descriptions of all entities of a resource, with their tags, for Search."""
        if resource == "ExperimentTrialComponent":
            return [self._found(component) for component in self.settled()]
        if resource == "Experiment":
            return [{**each.describe(), "Tags": each.describe_tags()} for each in self.experiments.all()]
        parts: dict[str, list[dict[str, Any]]] = {}
        for component in self.components.all():
            for trial in component.trials:
                parts.setdefault(trial, []).append(_summary(component))
        return [
            {**each.describe(), "Tags": each.describe_tags(), "TrialComponentSummaries": parts.get(each.name, [])}
            for each in self.trials.all()
        ]

    def _found(self, component: ComponentRecord) -> dict[str, Any]:
        trials = (trial for trial in map(self.trials.find, component.trials) if trial is not None)
        return {
            **self.show(component),
            "Tags": component.describe_tags(),
            "Parents": [{"TrialName": each.name, "ExperimentName": each.members["ExperimentName"]} for each in trials],
            **({"RunName": component.run} if component.run else {}),
        }

    def _job_of(self, component: ComponentRecord) -> HostedRecord[HostedRequest] | None:
        return self.find_job(component.follows) if component.follows else None


def _summary(component: ComponentRecord) -> dict[str, Any]:
    """Return a component as Search shows it in its trial."""
    source = {"TrialComponentSource": component.members["Source"]} if component.source else {}
    return {
        "TrialComponentName": component.name,
        "TrialComponentArn": component.arn,
        **source,
        "CreationTime": component.created,
    }


def _is_in_time(described: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    after, before = request.get("CreatedAfter"), request.get("CreatedBefore")
    if after is not None and described["CreationTime"] <= parse_to_aware_datetime(after):
        return False
    return before is None or bool(described["CreationTime"] < parse_to_aware_datetime(before))
