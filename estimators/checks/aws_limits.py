"""The API's own limits: of a single parameter, and of the finished request, which has more than the parameters.

The request also shows the names and hyperparameters that the SDK adds, the contents of its own classes, and members
that exclude each other; its problems are reported in the Estimator's parameters.

`service_model` finds the violations; this file words them for the Estimator's parameters. Enumerations grow with time,
so a value unknown to the installed botocore is a warning, unless it is an instance type of a size that EC2 does not
have; AWS refuses every other violation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from estimators import instances
from estimators.errors import Problem, error, nearest, warning
from estimators.request_rules import broken_rules_of_part
from estimators.service_model import Violation, service_model, size, violations

FIELDS: Mapping[str, str] = {
    "job_name": "TrainingJobName",
    "inputs": "InputDataConfig",
    "role": "RoleArn",
    "hyperparameters": "HyperParameters",
    "environment": "Environment",
    "tags": "Tags",
    "instance_type": "ResourceConfig.InstanceType",
    "instance_count": "ResourceConfig.InstanceCount",
    "volume_size": "ResourceConfig.VolumeSizeInGB",
    "volume_kms_key": "ResourceConfig.VolumeKmsKeyId",
    "keep_alive_period_in_seconds": "ResourceConfig.KeepAlivePeriodInSeconds",
    "training_plan": "ResourceConfig.TrainingPlanArn",
    "instance_placement_config": "ResourceConfig.InstancePlacementConfig",
    "max_run": "StoppingCondition.MaxRuntimeInSeconds",
    "max_wait": "StoppingCondition.MaxWaitTimeInSeconds",
    "max_retry_attempts": "RetryStrategy.MaximumRetryAttempts",
    "image_uri": "AlgorithmSpecification.TrainingImage",
    "input_mode": "AlgorithmSpecification.TrainingInputMode",
    "metric_definitions": "AlgorithmSpecification.MetricDefinitions",
    "container_entry_point": "AlgorithmSpecification.ContainerEntrypoint",
    "container_arguments": "AlgorithmSpecification.ContainerArguments",
    "output_path": "OutputDataConfig.S3OutputPath",
    "output_kms_key": "OutputDataConfig.KmsKeyId",
    "checkpoint_s3_uri": "CheckpointConfig.S3Uri",
    "checkpoint_local_path": "CheckpointConfig.LocalPath",
    "subnets": "VpcConfig.Subnets",
    "security_group_ids": "VpcConfig.SecurityGroupIds",
    "experiment_config": "ExperimentConfig",
}
"""The field of CreateTrainingJob that holds each parameter."""

_IN_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "long": "a whole number",
    "list": "a list",
    "map": "a dict",
    "structure": "a dict",
    "boolean": "True or False",
}
_SHOWN = 60


def check(parameter: str, value: Any) -> Iterator[Problem]:
    """Yield the API's limits that a parameter's value in the request exceeds; skip pipeline variables."""
    for violation in violations(_field(FIELDS[parameter]), value):
        yield told(violation, parameter, violation.path)


def told(violation: Violation, parameter: str, path: tuple[str | int, ...]) -> Problem:
    """Return a violation as a problem of `parameter`, at `path` within it."""
    place = "".join(f"[{_shown(step)}]" for step in path)
    if violation.is_name:
        place = f"{place} the name {_shown(violation.value)}"
    found, remedy = _words(violation)
    if parameter == "hyperparameters" and violation.rule == "most":
        remedy += " A script on this machine that reads them by smddp.run(main) takes any number and length."
    return (warning if _may_be_new(violation) else error)(parameter, f"{place} {found}".strip(), remedy)


def _may_be_new(violation: Violation) -> bool:
    """Return whether AWS may have added a value since the installed botocore."""
    name = str(violation.value)
    return violation.rule == "enum" and (not name.startswith("ml.") or instances.may_be_new(name))


def is_too_large(parameter: str, value: Any) -> bool:
    """Return whether the API would refuse a value, as the request would hold it, only for its size."""
    rules = {violation.rule for violation in violations(_field(FIELDS[parameter]), value)}
    return rules == {"most"}


def most(parameter: str) -> int:
    """Return the maximum number of items of a list or dict parameter."""
    return int(_field(FIELDS[parameter]).metadata["max"])


def nearest_instance_type(name: str) -> str:
    """Return ``Did you mean …?`` with the nearest instance types, and all sizes if only the size is unknown."""
    known = _field(FIELDS["instance_type"]).enum
    sizes = instances.known_sizes(name, known)
    if name in sizes:
        return f"Did you mean {name!r}?"
    if not sizes:
        return nearest(name, known)
    beside = instances.sizes_beside(name, known) if instances.may_be_new(name) else []
    meant = f"Did you mean {' or '.join(map(repr, beside))}?" if beside else nearest(name, known)
    family = name.rpartition(".")[0]
    return f"{meant} The sizes of {family} are {', '.join(each.removeprefix(f'{family}.') for each in sizes)}."


def _field(path: str) -> Any:
    shape: Any = service_model().operation_model("CreateTrainingJob").input_shape
    for name in path.split("."):
        shape = shape.members[name]
    return shape


def _words(violation: Violation) -> tuple[str, str]:
    """Return two texts: the value found, and the allowed values."""
    value, limit = violation.value, violation.limit
    match violation.rule:
        case "type":
            return f"is {_shown(value)}, of type {type(value).__name__}", f"Give {_IN_WORDS.get(limit, f'a {limit}')}."
        case "required":
            return f"lacks {value}", f"It must have {' and '.join(limit)}."
        case "unknown":
            return f"has {value!r}", nearest(str(value), limit)
        case "least" | "most" as bound if isinstance(value, (int, float)):
            return f"is {value}", f"The {bound} is {limit}."
        case "least" | "most" as bound:
            unit = "characters" if isinstance(value, str) else "entries"
            return f"has {size(value)} {unit}", f"The {bound} is {limit} {unit}."
        case "pattern":
            shown = "" if violation.is_name else f"{_shown(value)} "
            return f"{shown}is not of the form that the API takes", f"It must match {limit}"
        case "enum":
            near = nearest_instance_type(value) if value.startswith("ml.") else nearest(value, limit)
            remedy = f"{near} If it is new at AWS, do: pip install -U boto3"
            return f"is {value!r}, which the installed botocore does not know", remedy
        case "null":
            return "has the character U+0000", "Leave it out: no variable and no argument can hold it."


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


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
    "EnableManagedSpotTraining": "use_spot_instances",
}
"""The parameter behind each field that the SDK builds; the parameters in `FIELDS` go into the request unchanged."""
_PARAMETERS: Mapping[Path, str] = {
    tuple(field.split(".")): parameter
    for field, parameter in [*((field, name) for name, field in FIELDS.items()), *_MADE_BY_SDK.items()]
}
_NOTES: Mapping[str, str] = {
    "base_job_name": "The SDK makes the job's name from it or the image's name: give letters, digits and hyphens.",
    "hyperparameters": "The SDK adds some of its own (sagemaker_…), which count, too.",
    "inputs": "A job without channels takes none; the model's channel counts, too.",
}
"""Hints for a valid parameter from which the SDK makes an invalid field."""
_SDKS_MODEL_CHANNEL = "model"
_CHANNEL = re.compile(r"inputs\[|model_uri$|model_channel_name$")
"""What the parameters of single channels begin with."""


def check_form(request: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the violations of the API's model in a request, which the SDK made from `arguments`."""
    for violation in _violations(request):
        parameter, path = _origin(violation.path, request, arguments)
        problem = told(violation, parameter, path)
        if problem.severity == "error":  # the parameter's own check has already yielded a warning
            yield error(parameter, problem.found, f"{_NOTES.get(parameter, '')} {problem.remedy}".strip())


def _violations(request: Mapping[str, Any]) -> Iterator[Violation]:
    return violations(service_model().operation_model("CreateTrainingJob").input_shape, request)


def check_request(
    request: Mapping[str, Any], arguments: Mapping[str, Any], left_out: Collection[str] = ()
) -> tuple[list[Problem], list[str]]:
    """Return the problems of a request, and its members for which a rule could not be judged.

    The SDK made the request from `arguments`, without the parameters `left_out`, which have errors of their own. Their
    members are not judged. A member of an invalid form is not judged by the rules between members.
    """
    absent = _members_of(left_out)
    problems = [each for each in check_form(request, arguments) if each.parameter not in {*left_out, *absent}]
    absent |= {str(each.path[0]) for each in _violations(request) if each.path and not _may_be_new(each)}
    part = {name: value for name, value in request.items() if name not in absent}
    broken, unjudged = broken_rules_of_part(part, absent)
    problems += [error(_origin(each.path, request, arguments)[0], each.found, each.remedy) for each in broken]
    return problems, unjudged


def _members_of(parameters: Collection[str]) -> set[str]:
    """Return the members of a request that parameters decide."""
    given = {"inputs" if _CHANNEL.match(name) else name for name in parameters}
    return {str(path[0]) for path, parameter in _PARAMETERS.items() if parameter in given}


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
