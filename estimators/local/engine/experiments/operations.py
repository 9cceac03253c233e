"""The operations on experiments, trials and trial components; `Experiments` calls them under one lock.

It also creates the trial component of a job.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.errors import invalid
from estimators.local.engine.experiments.job_component import JobToTrack
from estimators.local.engine.experiments.record import (
    COMPONENT,
    AnyEntity,
    ComponentRecord,
    Entities,
    EntityRecord,
    EntityRecords,
    FindJob,
)
from estimators.local.engine.records import RecordStore, read_tags
from estimators.local.engine.validation import Handler
from smddp.display_text import shown_names

_NAMES_AND_TAGS = ("ExperimentName", "TrialName", "TrialComponentName", "Tags")


class TrialOperations:
    """Answers requests about experiments and trials."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities
        self.operations: Mapping[str, Handler] = {
            "CreateExperiment": self._create_experiment,
            "DescribeExperiment": lambda request: self._experiment(request).describe(),
            "ListExperiments": self._list_experiments,
            "UpdateExperiment": self._update_experiment,
            "DeleteExperiment": self._delete_experiment,
            "CreateTrial": self._create_trial,
            "DescribeTrial": lambda request: self._trial(request).describe(),
            "ListTrials": self._list_trials,
            "UpdateTrial": self._update_trial,
            "DeleteTrial": self._delete_trial,
        }

    def _experiment(self, request: Mapping[str, Any]) -> EntityRecord:
        return self._entities.experiments.get(request["ExperimentName"])

    def _trial(self, request: Mapping[str, Any]) -> EntityRecord:
        return self._entities.trials.get(request["TrialName"])

    def _create_experiment(self, request: dict[str, Any]) -> dict[str, Any]:
        experiment = self._entities.experiments.make(request["ExperimentName"], _members_of(request), _tags_of(request))
        self._entities.experiments.add(experiment)
        return {"ExperimentArn": experiment.arn}

    def _list_experiments(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._entities.experiments.page(
            [each.describe() for each in self._entities.experiments.all()], request, {}
        )

    def _update_experiment(self, request: dict[str, Any]) -> dict[str, Any]:
        experiment = self._experiment(request)
        experiment.change(_members_of(request))
        return {"ExperimentArn": experiment.arn}

    def _delete_experiment(self, request: dict[str, Any]) -> dict[str, Any]:
        experiment = self._experiment(request)
        trials = [each.name for each in self._entities.trials_of(experiment)]
        if trials:
            raise invalid(f"{experiment.name} has trials; delete them first: {shown_names(trials)}.")
        self._entities.experiments.remove(experiment)
        return {"ExperimentArn": experiment.arn}

    def _create_trial(self, request: dict[str, Any]) -> dict[str, Any]:
        members = {**_members_of(request), "ExperimentName": self._experiment(request).name}
        trial = self._entities.trials.make(request["TrialName"], members, _tags_of(request))
        self._entities.trials.add(trial)
        return {"TrialArn": trial.arn}

    def _list_trials(self, request: dict[str, Any]) -> dict[str, Any]:
        named = "ExperimentName" in request
        trials = self._entities.trials_of(self._experiment(request)) if named else self._entities.trials.all()
        if "TrialComponentName" in request:
            component = self._entities.components.get(request["TrialComponentName"])
            trials = [each for each in trials if each.name in component.trials]
        return self._entities.trials.page([each.describe() for each in trials], request, {})

    def _update_trial(self, request: dict[str, Any]) -> dict[str, Any]:
        trial = self._trial(request)
        trial.change(_members_of(request))
        return {"TrialArn": trial.arn}

    def _delete_trial(self, request: dict[str, Any]) -> dict[str, Any]:
        trial = self._trial(request)
        components = [each.name for each in self._entities.components.all() if trial.name in each.trials]
        if components:
            raise invalid(f"{trial.name} has trial components; disassociate them first: {shown_names(components)}.")
        self._entities.trials.remove(trial)
        return {"TrialArn": trial.arn}


class ComponentOperations:
    """Answers requests about trial components."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities
        self.operations: Mapping[str, Handler] = {
            "CreateTrialComponent": self._create_component,
            "DescribeTrialComponent": self._describe_component,
            "ListTrialComponents": self._list_components,
            "UpdateTrialComponent": self._update_component,
            "DeleteTrialComponent": self._delete_component,
            "AssociateTrialComponent": self._associate,
            "DisassociateTrialComponent": self._disassociate,
            "BatchPutMetrics": self._put_metrics,
        }

    def _component(self, request: Mapping[str, Any]) -> ComponentRecord:
        """Return the component that a request names, with the final state of its job if that has ended."""
        name = request["TrialComponentName"]
        component = self._entities.components.get(name.rpartition("/")[2])
        if name.startswith("arn:") and name != component.arn:
            raise COMPONENT.missing(component.name, name)
        return self._entities.settle(component)

    def _create_component(self, request: dict[str, Any]) -> dict[str, Any]:
        component = self._entities.components.make(
            request["TrialComponentName"], _members_of(request), _tags_of(request)
        )
        self._entities.components.add(component)
        return {"TrialComponentArn": component.arn}

    def _describe_component(self, request: dict[str, Any]) -> dict[str, Any]:
        component = self._component(request)
        own = component.members.get("Source")
        sources = [
            each.members["Source"]
            for each in self._entities.components.all()
            if each.run.lower() == component.name.lower() and "Source" in each.members
        ]
        sources = [own, *sources] if own else sources
        return {**self._entities.show(component), **({"Sources": sources} if sources else {})}

    def _list_components(self, request: dict[str, Any]) -> dict[str, Any]:
        filters = [name for name in ("ExperimentName", "TrialName", "SourceArn") if name in request]
        if len(filters) > 1:
            raise invalid(f"ListTrialComponents takes one of {', '.join(filters)}: give one of them.")
        components = self._entities.settled()
        if "ExperimentName" in request:
            experiment = self._entities.experiments.get(request["ExperimentName"])
            trials = {each.name for each in self._entities.trials_of(experiment)}
            components = [each for each in components if trials.intersection(each.trials)]
        elif "TrialName" in request:
            trial = self._entities.trials.get(request["TrialName"])
            components = [each for each in components if trial.name in each.trials]
        elif "SourceArn" in request:
            arn = request["SourceArn"].lower()  # as the SDK sends it
            components = [each for each in components if each.source.lower() == arn]
        shown = {"TrialComponentSource": "Source", **{name: name for name in ("Status", "StartTime", "EndTime")}}
        return self._entities.components.page([self._entities.show(each) for each in components], request, shown)

    def _update_component(self, request: dict[str, Any]) -> dict[str, Any]:
        component = self._component(request)
        component.update(_members_of(request))
        return {"TrialComponentArn": component.arn}

    def _delete_component(self, request: dict[str, Any]) -> dict[str, Any]:
        component = self._component(request)
        if component.trials:
            raise invalid(
                f"{component.name} is associated with trials; disassociate it first from {', '.join(component.trials)}."
            )
        self._entities.components.remove(component)
        return {"TrialComponentArn": component.arn}

    def _associate(self, request: dict[str, Any]) -> dict[str, Any]:
        component, trial = self._component(request), self._entities.trials.get(request["TrialName"])
        component.associate([*component.trials, trial.name])
        return {"TrialComponentArn": component.arn, "TrialArn": trial.arn}

    def _disassociate(self, request: dict[str, Any]) -> dict[str, Any]:
        component, trial = self._component(request), self._entities.trials.get(request["TrialName"])
        if trial.name not in component.trials:
            raise invalid(f"{component.name} is not associated with {trial.name}, and can't be disassociated from it.")
        component.associate(each for each in component.trials if each != trial.name)
        return {"TrialComponentArn": component.arn, "TrialArn": trial.arn}

    def _put_metrics(self, request: dict[str, Any]) -> dict[str, Any]:
        component = self._component(request)
        values = [_double(datum["Value"], "MetricData: Value") for datum in request["MetricData"]]
        for datum, value in zip(request["MetricData"], values, strict=True):
            component.add_metric(datum["MetricName"], value, parse_to_aware_datetime(datum["Timestamp"]))
        component.change({})
        return {}


def _members_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a request besides names and tags, with times as datetimes.

    Raise ApiError for a parameter without exactly one value, or with a number too large for a double.
    """
    for name, parameter in request.get("Parameters", {}).items():
        if len(parameter) != 1:
            raise invalid(f"Parameters: {name[:80]} has {len(parameter)} values: give a StringValue or a NumberValue.")
        _double(parameter.get("NumberValue", 0), f"Parameters: {name[:80]}")
    return {
        name: parse_to_aware_datetime(value) if name in ("StartTime", "EndTime") else value
        for name, value in request.items()
        if name not in _NAMES_AND_TAGS
    }


def _tags_of(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags by key; raise ApiError for a duplicate key, or a key reserved by AWS."""
    return read_tags(request.get("Tags", ()))


def _double(value: float, where: str) -> float:
    """Return a JSON number, which has no bounds, as a finite double; raise ApiError if it is too large."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise invalid(f"{where}: the number is larger than a double holds; give a finite one.")
    return number


class Experiments:
    """Experiments, trials and trial components, including entities of earlier platforms in the store."""

    def __init__(self, arn_prefix: str, store: RecordStore, find_job: FindJob) -> None:
        # Guards the records. Taken before the lock of an entity, of a job and of the store, never after one of them.
        self._lock = threading.Lock()
        self._entities = Entities(arn_prefix, store, find_job)
        unlocked = {**TrialOperations(self._entities).operations, **ComponentOperations(self._entities).operations}
        self.operations: Mapping[str, Handler] = {name: self._locked(operation) for name, operation in unlocked.items()}

    def find(self, arn: str) -> EntityRecord | None:
        """Return the experiment, trial or trial component of an ARN, or None."""
        with self._lock:
            return self._entities.find(arn)

    def search_records(self, resource: str) -> list[dict[str, Any]]:
        """Return the descriptions of all entities of a resource, with their tags, for Search."""
        with self._lock:
            return self._entities.search_records(resource)

    def settle(self, job_arn: str) -> None:
        """Copy the final state of an ended job to its component, before the job is deleted."""
        with self._lock:
            for component in self._entities.components.all():
                if component.follows == job_arn:
                    self._entities.settle(component)

    @contextlib.contextmanager
    def track(self, job: JobToTrack) -> Iterator[None]:
        """Add a job's trial component before the block that creates the job; undo that if the block raises.

        Raise ApiError if the experiment or trial is absent, or a user's component has the name.
        """
        # 1. If a job of this name exists, the block refuses the new one, and the component stays as it is.
        # 2. Under the lock: add a new trial if needed, and the component, in place of a deleted job's component.
        # 3. Without the lock: the block creates the job, which takes locks of its own.
        # 4. If the block raises, put the earlier component back or remove the new one, and remove the new trial.
        if self._entities.find_job(job.arn) is not None:
            yield
            return
        with contextlib.ExitStack() as undo:
            with self._lock:
                trial = self._trial_of(job)
                if trial is not None and self._entities.trials.find(trial.name) is None:
                    self._entities.trials.add(trial)
                    undo.callback(self._remove, self._entities.trials, trial)
                earlier = self._entities.components.find(job.component)
                if earlier is not None and earlier.source != job.arn:
                    earlier = None
                component = self._entities.components.make(job.component, job.members(), {})
                component.follows, component.run = job.arn, job.experiment_config.get("RunName", "")
                component.trials = () if trial is None else (trial.name,)
                self._entities.components.add(component, instead_of=earlier)
                undo.callback(self._remove, self._entities.components, component, earlier)
            yield
            undo.pop_all()

    def _locked(self, operation: Handler) -> Handler:
        def answer(request: dict[str, Any]) -> dict[str, Any]:
            with self._lock:
                return operation(request)

        return answer

    def _remove(self, records: EntityRecords[AnyEntity], entity: AnyEntity, earlier: AnyEntity | None = None) -> None:
        """Undo the addition of an entity: put the earlier one back, or remove the entity."""
        with self._lock:
            if earlier is not None:
                records.add(earlier, instead_of=records.find(entity.name))
            else:
                records.remove(entity)

    def _trial_of(self, job: JobToTrack) -> EntityRecord | None:
        """Return the trial of a request's ExperimentConfig, an existing or a new one; None if absent."""
        config = job.experiment_config
        experiment = self._entities.experiments.get(config["ExperimentName"]) if "ExperimentName" in config else None
        if "TrialName" in config:
            trial = self._entities.trials.get(config["TrialName"])
            of = trial.members["ExperimentName"]
            if experiment is not None and of != experiment.name:
                raise invalid(
                    f"ExperimentConfig: the trial {trial.name} is of the experiment {of}, and not of "
                    f"{experiment.name}; leave ExperimentName out, or name another trial."
                )
            return trial
        if experiment is None:
            return None
        name = f"{job.component}-trial"
        trial_of_name = self._entities.trials.find(name)  # left by a deleted job of the same name
        if trial_of_name is not None and trial_of_name.members["ExperimentName"] == experiment.name:
            return trial_of_name
        return self._entities.trials.make(name, {"ExperimentName": experiment.name}, {})
