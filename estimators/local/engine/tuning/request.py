"""A CreateHyperParameterTuningJob request, read once into a frozen value; unsupported members are refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from estimators.local.engine.errors import invalid
from estimators.local.engine.records import read_tags
from estimators.local.engine.training.request import TrainingRequest
from estimators.local.engine.tuning.ranges import Choice, NumberRange, Range, read_ranges
from estimators.local.engine.validation import check_request

Strategy = Literal["Bayesian", "Random", "Hyperband", "Grid"]

OBJECTIVE_HYPERPARAMETER = "_tuning_objective_metric"
"""The hyperparameter that tells a training job its objective metric, as on AWS."""

_TUNING_RESOURCES = "HyperParameterTuningResourceConfig"
_CAPACITY = frozenset({"AllocationStrategy", "InstanceConfigs"})
_NOT_OF_TRAINING = frozenset(
    {"DefinitionName", "TuningObjective", "HyperParameterRanges", "StaticHyperParameters", _TUNING_RESOURCES}
)
"""The members of a definition that are not in CreateTrainingJob."""

_EPOCHS = ("epochs", "numepochs", "n-epochs", "n_epochs", "num_epochs")
"""The hyperparameters from which AWS takes Hyperband's MaxResource if it is absent (botocore's model)."""
_INSTEAD = {
    "TrainingJobDefinitions": "start a tuning job for each definition, with TrainingJobDefinition",
    "Autotune": "give ranges, a strategy and limits",
}


@dataclass(kw_only=True, slots=True, frozen=True)
class Hyperband:
    """The number of the objective's values after which a training job may be stopped: ``least`` to ``most``."""

    least: int
    most: int


@dataclass(kw_only=True, slots=True, frozen=True)
class TuningRequest:
    """The part of a request that shapes the search."""

    name: str
    members: Mapping[str, Any]
    """The request itself, for descriptions."""
    strategy: Strategy
    metric: str
    """The objective metric: one of the training jobs' metric definitions."""
    maximize: bool
    ranges: tuple[Range, ...]
    most_jobs: int | None
    """How many training jobs start at most; None: another limit ends the search."""
    parallel: int
    """How many training jobs run at a time."""
    max_runtime: int | None
    """Seconds of the whole search; None: no limit."""
    stops_early: bool
    """Whether a training job worse than the median of the others is stopped."""
    hyperband: Hyperband | None
    target: float | None
    """The value of the metric that ends the search."""
    most_without_progress: int | None
    """How many training jobs in a row may fail to beat the best before them."""
    seed: int | None
    parents: tuple[str, ...]
    """Earlier tuning jobs; the search begins with their results."""
    tags: Mapping[str, str]

    @classmethod
    def parse(cls, request: Mapping[str, Any]) -> TuningRequest:
        """Check and read a request, and the request of a sample training job.

        Raise ApiError if AWS or the local platform would refuse one of the two.
        """
        return cls.read(check_request("CreateHyperParameterTuningJob", request))

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> TuningRequest:
        """Read a request of a valid form; raise ApiError if AWS or the local platform would refuse it."""
        members = copy.deepcopy(dict(request))
        for member, instead in _INSTEAD.items():
            if member in members:
                raise invalid(f"{member} is not offered by the local platform; {instead}.")
        config, definition = members["HyperParameterTuningJobConfig"], _definition(members)
        strategy, limits = config["Strategy"], config["ResourceLimits"]
        objective = config.get("HyperParameterTuningJobObjective") or definition.get("TuningObjective")
        if objective is None:
            raise invalid("HyperParameterTuningJobConfig.HyperParameterTuningJobObjective is missing; give the metric.")
        _require_defined(objective["MetricName"], definition)
        ranges = read_ranges(
            config.get("ParameterRanges") or definition.get("HyperParameterRanges") or {},
            definition.get("StaticHyperParameters", {}),
        )
        criteria = config.get("TuningJobCompletionCriteria", {})
        stops_early = config.get("TrainingJobEarlyStoppingType", "Off") == "Auto"
        most_jobs = _most_jobs(strategy, ranges, limits, criteria)
        if strategy == "Hyperband" and stops_early:
            raise invalid(
                "The strategy Hyperband stops training jobs by itself; leave TrainingJobEarlyStoppingType out."
            )
        parsed = cls(
            name=members["HyperParameterTuningJobName"],
            members=members,
            strategy=strategy,
            metric=objective["MetricName"],
            maximize=objective["Type"] == "Maximize",
            ranges=ranges,
            most_jobs=most_jobs,
            parallel=limits["MaxParallelTrainingJobs"],
            max_runtime=limits.get("MaxRuntimeInSeconds"),
            stops_early=stops_early,
            hyperband=_hyperband(config, definition.get("StaticHyperParameters", {}))
            if strategy == "Hyperband"
            else None,
            target=criteria.get("TargetObjectiveMetricValue"),
            most_without_progress=criteria.get("BestObjectiveNotImproving", {}).get(
                "MaxNumberOfTrainingJobsNotImproving"
            ),
            seed=config.get("RandomSeed"),
            parents=tuple(
                parent["HyperParameterTuningJobName"]
                for parent in members.get("WarmStartConfig", {}).get("ParentHyperParameterTuningJobs", ())
            ),
            tags=read_tags(members.get("Tags", ())),
        )
        TrainingRequest.parse(parsed.training_job(f"{parsed.name}-001-00000000", parsed.some_hyperparameters()))
        return parsed

    def training_job(self, name: str, tuned: Mapping[str, str]) -> dict[str, Any]:
        """Return the CreateTrainingJob request of one training job."""
        definition = copy.deepcopy(_definition(self.members))
        static = definition.get("StaticHyperParameters", {})
        tags = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        return {
            **{member: value for member, value in definition.items() if member not in _NOT_OF_TRAINING},
            "TrainingJobName": name,
            "ResourceConfig": training_resources(definition),
            **_checkpoints(definition, name),
            "HyperParameters": {**static, OBJECTIVE_HYPERPARAMETER: self.metric, **tuned},
            **({"Tags": tags} if tags else {}),
        }

    def some_hyperparameters(self) -> dict[str, str]:
        """Return sample hyperparameters from the ranges."""
        return {
            each.name: each.values[0] if isinstance(each, Choice) else each.text(each.least) for each in self.ranges
        }

    @property
    def objective(self) -> str:
        """The objective in words, for messages."""
        return f"{'Maximize' if self.maximize else 'Minimize'} {self.metric}"

    @property
    def static(self) -> Mapping[str, str]:
        """The hyperparameters that all training jobs share."""
        static: Mapping[str, str] = self.members["TrainingJobDefinition"].get("StaticHyperParameters", {})
        return static

    def is_better(self, value: float, than: float | None, *, by: float = 0.0) -> bool:
        """Return whether a value beats another one by at least the fraction ``by`` of it; any value beats None."""
        if than is None:
            return True
        gain = value - than if self.maximize else than - value
        return gain > 0 and gain >= by * abs(than)


def _definition(members: Mapping[str, Any]) -> dict[str, Any]:
    definition: dict[str, Any] | None = members.get("TrainingJobDefinition")
    if definition is None:
        raise invalid("TrainingJobDefinition is missing; give the training job that is to be tuned.")
    if ("ResourceConfig" in definition) == (_TUNING_RESOURCES in definition):
        raise invalid(f"TrainingJobDefinition must have either ResourceConfig or {_TUNING_RESOURCES}.")
    return definition


def _checkpoints(definition: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a CheckpointConfig with a prefix for each training job, so none resumes another one's training."""
    if "CheckpointConfig" not in definition:
        return {}
    config = definition["CheckpointConfig"]
    return {"CheckpointConfig": {**config, "S3Uri": f"{config['S3Uri'].rstrip('/')}/{name}"}}


def training_resources(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ResourceConfig of a training job."""
    if "ResourceConfig" in definition:
        return dict(definition["ResourceConfig"])
    given = definition[_TUNING_RESOURCES]
    # In order of priority; the others are for a lack of capacity on AWS.
    first = given.get("InstanceConfigs", [{}])[0]
    return {name: value for name, value in {**given, **first}.items() if name not in _CAPACITY}


def _require_defined(metric: str, definition: Mapping[str, Any]) -> None:
    defined = [each["Name"] for each in definition["AlgorithmSpecification"].get("MetricDefinitions", ())]
    if metric not in defined:
        raise invalid(
            f"The objective metric {metric} is none of the MetricDefinitions of AlgorithmSpecification, which are "
            f"{', '.join(defined) or 'none'}; give its name and the regex that finds it in the log."
        )


def _most_jobs(
    strategy: Strategy, ranges: tuple[Range, ...], limits: Mapping[str, Any], criteria: Mapping[str, Any]
) -> int | None:
    if criteria.get("ConvergenceDetected", {}).get("CompleteOnConvergence") == "Enabled":
        raise invalid(
            "TuningJobCompletionCriteria.ConvergenceDetected is not offered by the local platform; use "
            "BestObjectiveNotImproving."
        )
    most: int | None = limits.get("MaxNumberOfTrainingJobs")
    if strategy == "Grid":
        if numbers := [each.name for each in ranges if isinstance(each, NumberRange)]:
            raise invalid(f"The strategy Grid takes categorical ranges alone; {', '.join(numbers)} has numbers.")
        points = math.prod(len(each.values) for each in ranges if isinstance(each, Choice))
        if most not in (None, points):
            raise invalid(
                f"MaxNumberOfTrainingJobs is {most}; the grid has {points} points: give that, or leave it out."
            )
        return points
    if most is None and "MaxRuntimeInSeconds" not in limits and not criteria:
        raise invalid(f"The strategy {strategy} never ends by itself; give ResourceLimits.MaxNumberOfTrainingJobs.")
    return most


def _hyperband(config: Mapping[str, Any], static: Mapping[str, str]) -> Hyperband:
    given = config.get("StrategyConfig", {}).get("HyperbandStrategyConfig", {})
    epochs = next((static[name].strip('"') for name in _EPOCHS if name in static), "")
    least, most = given.get("MinResource", 1), given.get("MaxResource", int(epochs) if epochs.isdecimal() else None)
    if most is None or most <= least:
        raise invalid(
            f"HyperbandStrategyConfig has MinResource {least} and MaxResource {most}; MaxResource is the number of "
            "values of the objective that a whole training job reports, MinResource a smaller number."
        )
    return Hyperband(least=least, most=most)
