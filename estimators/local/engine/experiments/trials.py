"""The operations on experiments and their trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.local.engine.errors import invalid
from estimators.local.engine.experiments.entity import EntityRecord
from estimators.local.engine.experiments.records import Records
from estimators.local.engine.experiments.request_members import members_of, tags_of
from estimators.local.engine.validation import Handler


class TrialOperations:
    """Answers requests about experiments and trials."""

    def __init__(self, records: Records) -> None:
        self._records = records
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
        return self._records.experiments.get(request["ExperimentName"])

    def _trial(self, request: Mapping[str, Any]) -> EntityRecord:
        return self._records.trials.get(request["TrialName"])

    def _create_experiment(self, request: dict[str, Any]) -> dict[str, Any]:
        experiment = self._records.experiments.make(request["ExperimentName"], members_of(request), tags_of(request))
        self._records.experiments.add(experiment)
        return {"ExperimentArn": experiment.arn}

    def _list_experiments(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._records.experiments.page(
            [each.describe() for each in self._records.experiments.all()], request, {}
        )

    def _update_experiment(self, request: dict[str, Any]) -> dict[str, Any]:
        experiment = self._experiment(request)
        experiment.change(members_of(request))
        return {"ExperimentArn": experiment.arn}

    def _delete_experiment(self, request: dict[str, Any]) -> dict[str, Any]:
        experiment = self._experiment(request)
        trials = [each.name for each in self._records.trials_of(experiment)]
        if trials:
            raise invalid(f"{experiment.name} has trials; delete them first: {', '.join(trials[:5])}.")
        self._records.experiments.remove(experiment)
        return {"ExperimentArn": experiment.arn}

    def _create_trial(self, request: dict[str, Any]) -> dict[str, Any]:
        members = {**members_of(request), "ExperimentName": self._experiment(request).name}
        trial = self._records.trials.make(request["TrialName"], members, tags_of(request))
        self._records.trials.add(trial)
        return {"TrialArn": trial.arn}

    def _list_trials(self, request: dict[str, Any]) -> dict[str, Any]:
        named = "ExperimentName" in request
        trials = self._records.trials_of(self._experiment(request)) if named else self._records.trials.all()
        if "TrialComponentName" in request:
            component = self._records.components.get(request["TrialComponentName"])
            trials = [each for each in trials if each.name in component.trials]
        return self._records.trials.page([each.describe() for each in trials], request, {})

    def _update_trial(self, request: dict[str, Any]) -> dict[str, Any]:
        trial = self._trial(request)
        trial.change(members_of(request))
        return {"TrialArn": trial.arn}

    def _delete_trial(self, request: dict[str, Any]) -> dict[str, Any]:
        trial = self._trial(request)
        components = [each.name for each in self._records.components.all() if trial.name in each.trials]
        if components:
            raise invalid(f"{trial.name} has trial components; disassociate them first: {', '.join(components[:5])}.")
        self._records.trials.remove(trial)
        return {"TrialArn": trial.arn}
