"""The operations on experiments, trials and trial components; `Experiments` calls them under its lock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.errors import invalid
from estimators.local.engine.experiments.record import COMPONENT, ComponentRecord, EntityRecord
from estimators.local.engine.experiments.records import Entities
from estimators.local.engine.records import read_tags
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
