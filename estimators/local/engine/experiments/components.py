"""The operations on trial components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.errors import invalid
from estimators.local.engine.experiments.component import ComponentRecord
from estimators.local.engine.experiments.entity import COMPONENT
from estimators.local.engine.experiments.records import Records
from estimators.local.engine.experiments.request_members import double, members_of, tags_of
from estimators.local.engine.validation import Handler


class ComponentOperations:
    """Answers requests about trial components."""

    def __init__(self, records: Records) -> None:
        self._records = records
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
        component = self._records.components.get(name.rpartition("/")[2])
        if name.startswith("arn:") and name != component.arn:
            raise COMPONENT.missing(component.name, name)
        return self._records.settle(component)

    def _create_component(self, request: dict[str, Any]) -> dict[str, Any]:
        component = self._records.components.make(request["TrialComponentName"], members_of(request), tags_of(request))
        self._records.components.add(component)
        return {"TrialComponentArn": component.arn}

    def _describe_component(self, request: dict[str, Any]) -> dict[str, Any]:
        component = self._component(request)
        own = component.members.get("Source")
        sources = [
            each.members["Source"]
            for each in self._records.components.all()
            if each.run.lower() == component.name.lower() and "Source" in each.members
        ]
        sources = [own, *sources] if own else sources
        return {**self._records.show(component), **({"Sources": sources} if sources else {})}

    def _list_components(self, request: dict[str, Any]) -> dict[str, Any]:
        filters = [name for name in ("ExperimentName", "TrialName", "SourceArn") if name in request]
        if len(filters) > 1:
            raise invalid(f"ListTrialComponents takes one of {', '.join(filters)}: give one of them.")
        components = self._records.settled()
        if "ExperimentName" in request:
            experiment = self._records.experiments.get(request["ExperimentName"])
            trials = {each.name for each in self._records.trials_of(experiment)}
            components = [each for each in components if trials.intersection(each.trials)]
        elif "TrialName" in request:
            trial = self._records.trials.get(request["TrialName"])
            components = [each for each in components if trial.name in each.trials]
        elif "SourceArn" in request:
            arn = request["SourceArn"].lower()  # as the SDK sends it
            components = [each for each in components if each.source.lower() == arn]
        shown = {"TrialComponentSource": "Source", **{name: name for name in ("Status", "StartTime", "EndTime")}}
        return self._records.components.page([self._records.show(each) for each in components], request, shown)

    def _update_component(self, request: dict[str, Any]) -> dict[str, Any]:
        component = self._component(request)
        component.update(members_of(request))
        return {"TrialComponentArn": component.arn}

    def _delete_component(self, request: dict[str, Any]) -> dict[str, Any]:
        component = self._component(request)
        if component.trials:
            raise invalid(
                f"{component.name} is associated with trials; disassociate it first from {', '.join(component.trials)}."
            )
        self._records.components.remove(component)
        return {"TrialComponentArn": component.arn}

    def _associate(self, request: dict[str, Any]) -> dict[str, Any]:
        component, trial = self._component(request), self._records.trials.get(request["TrialName"])
        component.associate([*component.trials, trial.name])
        return {"TrialComponentArn": component.arn, "TrialArn": trial.arn}

    def _disassociate(self, request: dict[str, Any]) -> dict[str, Any]:
        component, trial = self._component(request), self._records.trials.get(request["TrialName"])
        if trial.name not in component.trials:
            raise invalid(f"{component.name} is not associated with {trial.name}, and can't be disassociated from it.")
        component.associate(each for each in component.trials if each != trial.name)
        return {"TrialComponentArn": component.arn, "TrialArn": trial.arn}

    def _put_metrics(self, request: dict[str, Any]) -> dict[str, Any]:
        component = self._component(request)
        values = [double(datum["Value"], "MetricData: Value") for datum in request["MetricData"]]
        for datum, value in zip(request["MetricData"], values, strict=True):
            component.add_metric(datum["MetricName"], value, parse_to_aware_datetime(datum["Timestamp"]))
        component.change({})
        return {}
