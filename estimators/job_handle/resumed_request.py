"""The CreateTrainingJob of a resumed job: the previous job's description, with changes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from estimators.errors import EstimatorError
from estimators.service_model import service_model
from smddp.job.hyperparameters.sources import POINTER

_LONGEST_NAME = 63
_TIME_IN_NAME = re.compile(r"-\d{4}(-\d{2}){5}-\d{3}$")
_NAME_PARAMETER, _TYPE_PARAMETER = "sagemaker_job_name", "sagemaker_instance_type"
"""Hyperparameters in which the SDK repeats the job's name and the instance type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The differences from the previous job; None keeps a value."""

    hyperparameters: Mapping[str, Any] | None
    """Values by name; a value of None removes the hyperparameter."""
    environment: Mapping[str, str] | None
    """Variables by name, added to the job's own or replacing them."""
    instance_type: str | None
    instance_count: int | None
    max_run: int | None
    max_wait: int | None
    use_spot_instances: bool | None


def new_name(before: str, now: datetime | None = None) -> str:
    """Return a job's name with the current time instead of its own, in the SDK's format."""
    now = now or datetime.now(timezone.utc)
    moment = f"-{now:%Y-%m-%d-%H-%M-%S}-{now.microsecond // 1000:03}"
    return f"{_TIME_IN_NAME.sub('', before)[: _LONGEST_NAME - len(moment)].rstrip('-')}{moment}"


def sent_request(description: Mapping[str, Any]) -> dict[str, Any]:
    """Rebuild the CreateTrainingJob from a job's description, as a copy. Tags are not in a description."""
    shape = service_model().operation_model("CreateTrainingJob").input_shape
    assert shape is not None
    request = {key: copy.deepcopy(value) for key, value in description.items() if key in shape.members and value != []}
    if not request["OutputDataConfig"].get("KmsKeyId"):  # a description contains "" if there is no key
        request["OutputDataConfig"].pop("KmsKeyId", None)
    for selected in ("SelectedInstanceType", "SelectedInstanceCount"):  # a description adds the selected preference
        request.get("ResourceConfig", {}).pop(selected, None)
    return request


def resumed_request(description: Mapping[str, Any], changes: Changes, name: str) -> dict[str, Any]:
    """Return the request of the resumed job, without tags; raise EstimatorError if a change does not fit the job."""
    request = sent_request(description)
    request["TrainingJobName"] = name
    resources, stopping = request["ResourceConfig"], request["StoppingCondition"]
    if changes.instance_type is not None or changes.instance_count is not None:
        if "InstanceGroups" in resources:
            raise EstimatorError(
                "instance_type and instance_count can't be changed: the job has instance groups. Send it by an "
                "Estimator with other instance_groups and the same checkpoint_s3_uri."
            )
        if changes.instance_type is not None:
            resources.pop("InstancePreferences", None)
        for preference in resources.get("InstancePreferences", ()):
            preference.pop("InstanceCount", None)
        resources.update(_stated(InstanceType=changes.instance_type, InstanceCount=changes.instance_count))
    stopping.update(_stated(MaxRuntimeInSeconds=changes.max_run, MaxWaitTimeInSeconds=changes.max_wait))
    if changes.use_spot_instances is not None:
        request["EnableManagedSpotTraining"] = changes.use_spot_instances
    if not request.get("EnableManagedSpotTraining"):
        if changes.max_wait is not None:
            raise EstimatorError("max_wait is for spot jobs alone. Leave it out, or give use_spot_instances=True.")
        stopping.pop("MaxWaitTimeInSeconds", None)
    request["HyperParameters"] = _hyperparameters(request, changes)
    if changes.environment is not None and not isinstance(changes.environment, Mapping):
        raise EstimatorError(f"environment is {changes.environment!r}. Give a dict of the variables that change.")
    if changes.environment:
        request["Environment"] = {**request.get("Environment", {}), **changes.environment}
    return request


def _hyperparameters(request: Mapping[str, Any], changes: Changes) -> dict[str, str]:
    """Return the hyperparameters in the job's encoding: JSON text, as SDK V2 sends it, or bare text, as V3 does."""
    given = changes.hyperparameters or {}
    if not isinstance(given, Mapping):
        raise EstimatorError(f"hyperparameters is {given!r}. Give a dict of those that change.")
    values: dict[str, str] = dict(request.get("HyperParameters", {}))
    is_json = any(value.startswith('"') for value in values.values())
    own = {_NAME_PARAMETER: request["TrainingJobName"], _TYPE_PARAMETER: request["ResourceConfig"].get("InstanceType")}
    for name, value in {**{name: own[name] for name in own if name in values}, **given}.items():
        if value is None:
            if name not in values and POINTER in values:
                raise EstimatorError(
                    f"hyperparameters[{name!r}] can't be taken away: the job's large hyperparameters lie in the bundle "
                    "of its code, and it may be one of them. Send the job anew by an Estimator."
                )
            values.pop(name, None)
            continue
        try:
            values[name] = value if isinstance(value, str) and not is_json else json.dumps(value)
        except (TypeError, ValueError) as fault:
            raise EstimatorError(f"hyperparameters[{name!r}] is {value!r}, which is no JSON: {fault}.") from fault
    return values


def _stated(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
