"""One trial component: its logged values, its trials, and the job that it follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from estimators.local.engine.errors import invalid
from estimators.local.engine.experiments.entity import EntityRecord
from estimators.local.engine.experiments.job_component import JobNow
from estimators.local.engine.metric_summary import MetricSummary
from estimators.service_model import service_model

_MAPS = {
    "Parameters": "TrialComponentParameters",
    "InputArtifacts": "TrialComponentArtifacts",
    "OutputArtifacts": "TrialComponentArtifacts",
}
"""Members that are updated entry by entry, and their shapes in the model."""


class ComponentRecord(EntityRecord):
    """The record of a trial component from its creation on."""

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
        """The ARN of its job; empty if it is no job's component."""
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
