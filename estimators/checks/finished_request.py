"""Check the CreateTrainingJob that the SDK built, and report problems in the Estimator's parameters.

The other checks look at one parameter each, before the SDK runs. This one sees the whole request: the names and
hyperparameters that the SDK adds, the contents of its own classes, and members that exclude each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from estimators.checks import aws_limits
from estimators.problem import Problem, error
from estimators.request_rules import broken_rules
from estimators.service_model import service_model, violations

Path = tuple[str | int, ...]

_MADE_BY_SDK: Mapping[str, str] = {
    "TrainingJobName": "base_job_name",
    "ResourceConfig.InstanceGroups": "instance_groups",
    "ResourceConfig.InstancePreferences": "instance_preferences",
    "MlflowConfig": "mlflow_config",
    "AlgorithmSpecification.TrainingImageConfig": "training_repository_access_mode",
    "DebugHookConfig": "debugger_hook_config",
    "DebugRuleConfigurations": "rules",
    "ProfilerConfig": "profiler_config",
    "ProfilerRuleConfigurations": "rules",
    "TensorBoardOutputConfig": "tensorboard_output_config",
}
"""The parameter behind each field that the SDK builds; those of `aws_limits.FIELDS` go into the request unchanged."""
_PARAMETERS: Mapping[Path, str] = {
    tuple(field.split(".")): parameter
    for field, parameter in [*((field, name) for name, field in aws_limits.FIELDS.items()), *_MADE_BY_SDK.items()]
}
_NOTES: Mapping[str, str] = {
    "base_job_name": "The SDK makes the job's name of it, or of the image's name: give letters, digits and hyphens.",
    "hyperparameters": "The SDK adds some of its own (sagemaker_…), which count, too.",
    "inputs": "A job without channels takes none; the model's channel counts, too.",
}
"""Hints for a valid parameter from which the SDK makes an invalid field."""
_SDKS_MODEL_CHANNEL = "model"


def check_form(request: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what the API's model does not allow in a request, which the SDK made from `arguments`."""
    for violation in violations(service_model().operation_model("CreateTrainingJob").input_shape, request):
        parameter, path = _origin(violation.path, request, arguments)
        problem = aws_limits.told(violation, parameter, path)
        if problem.severity == "error":  # the parameter's own check has already yielded a warning
            yield error(parameter, problem.found, f"{_NOTES.get(parameter, '')} {problem.remedy}".strip())


def check_rules(request: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield broken rules between the members of a valid request, which the SDK made from `arguments`."""
    for broken in broken_rules(request):
        parameter, _ = _origin(broken.path, request, arguments)
        yield error(parameter, broken.found, broken.remedy)


def _origin(path: Path, request: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[str, Path]:
    """Return the parameter behind a path in the request, and the rest of the path within that parameter."""
    if path[:1] == ("InputDataConfig",) and len(path) > 1:
        assert isinstance(path[1], int)
        name = request["InputDataConfig"][path[1]].get("ChannelName")
        if "model_uri" in arguments and name == arguments.get("model_channel_name", _SDKS_MODEL_CHANNEL):
            return ("model_channel_name" if path[2:] == ("ChannelName",) else "model_uri"), ()
        return f"inputs[{name!r}]", path[2:]
    for length in range(len(path), 0, -1):
        if parameter := _PARAMETERS.get(path[:length]):
            return parameter, path[length:]
    return str(path[0]), path[1:]
