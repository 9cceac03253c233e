"""All experiments, trials and trial components of a platform, and the jobs that the components follow.

`EntityRecords` are the entities of one kind, `Entities` are all entities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.experiments.job_component import JobNow
from estimators.local.engine.experiments.record import (
    COMPONENT,
    EXPERIMENT,
    TRIAL,
    AnyEntity,
    ComponentRecord,
    EntityKind,
    EntityRecord,
)
from estimators.local.engine.hosted.record import HostedRecord
from estimators.local.engine.hosted.request import HostedRequest
from estimators.local.engine.listing import cut_page
from estimators.local.engine.records import Records, RecordStore

FindJob = Callable[[str], "HostedRecord[HostedRequest] | None"]
"""Returns the training or processing job of an ARN, or None."""


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
