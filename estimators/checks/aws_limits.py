"""The API's own limits on what a parameter may hold: lengths, patterns, counts, types.

They are read from botocore's model of the service, so there is no copy of them here. An enumeration grows with time,
so a value that the installed botocore does not list is a warning; every other violation is refused by AWS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from estimators.problem import Problem, error, nearest, warning

if TYPE_CHECKING:
    from botocore.model import Shape

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
}
"""Which field of CreateTrainingJob a parameter ends in."""

_NUMBERS = frozenset({"integer", "long"})
_IN_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "long": "a whole number",
    "list": "a list",
    "map": "a dict",
    "structure": "a dict",
}
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Violation:
    place: str
    found: str
    allowed: str
    certain: bool = True


def check(parameter: str, value: Any) -> Iterator[Problem]:
    """What the API would refuse of a parameter's value, given as the request would hold it.

    Values that the SDK resolves later (pipeline variables) are passed over.
    """
    yield from _problems(parameter, _field(FIELDS[parameter]), value)


def check_member(member: str, value: Any) -> Iterator[Problem]:
    """What the API would refuse of a member of a finished CreateTrainingJob, such as ``TrainingJobName``."""
    yield from _problems(member, _field(member), value)


def _problems(parameter: str, shape: Any, value: Any) -> Iterator[Problem]:
    for violation in _violations(shape, value, ""):
        found = f"{violation.place} {violation.found}".strip()
        yield (error if violation.certain else warning)(parameter, found, violation.allowed)


def most(parameter: str) -> int:
    """How many items the API takes in a parameter that is a list."""
    return int(_field(FIELDS[parameter]).metadata["max"])


def compile_pattern(pattern: str) -> re.Pattern[str] | None:
    r"""A pattern for AWS's (Java's) regular expressions in Python; None if it uses what Python lacks, as ``\p{L}``.

    Raises:
        re.error: It is no pattern at all.
    """
    return None if "\\p{" in pattern else re.compile(pattern)


@lru_cache(maxsize=1)
def _request() -> Shape:
    import botocore.session

    shape = botocore.session.get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob")
    assert shape.input_shape is not None
    return shape.input_shape


def _field(path: str) -> Any:
    shape: Any = _request()
    for name in path.split("."):
        shape = shape.members[name]
    return shape


def _violations(shape: Any, value: Any, place: str) -> Iterator[_Violation]:
    kind = shape.type_name
    if kind == "string" and isinstance(value, str):
        yield from _string(shape, value, place)
    elif kind in _NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        yield from _range(shape, value, place, f"is {value}", "")
    elif kind == "list" and isinstance(value, Sequence) and not isinstance(value, str):
        yield from _range(shape, len(value), place, f"has {len(value)} entries", " entries")
        for number, item in enumerate(value):
            yield from _violations(shape.member, item, f"{place}[{number}]")
    elif kind == "map" and isinstance(value, Mapping):
        yield from _range(shape, len(value), place, f"has {len(value)} entries", " entries")
        for key, item in value.items():
            yield from _violations(shape.key, key, f"{place}the name {_shown(key)}")
            yield from _violations(shape.value, item, f"{place}[{_shown(key)}]")
    elif kind == "structure" and isinstance(value, Mapping):
        yield from _structure(shape, value, place)
    elif value is None or (isinstance(value, (str, int, float, Mapping, Sequence)) and kind != "boolean"):
        yield _Violation(
            place=place,
            found=f"is {_shown(value)}, of type {type(value).__name__}",
            allowed=f"Give {_IN_WORDS.get(kind, kind)}.",
        )


def _structure(shape: Any, value: Mapping[str, Any], place: str) -> Iterator[_Violation]:
    for name in shape.required_members:
        if name not in value:
            yield _Violation(
                place=place, found=f"lacks {name}", allowed=f"It must have {' and '.join(shape.required_members)}."
            )
    for name, item in value.items():
        if name in shape.members:
            yield from _violations(shape.members[name], item, f"{place}[{name!r}]")
        else:
            yield _Violation(place=place, found=f"has {name!r}", allowed=nearest(str(name), shape.members))


def _string(shape: Any, value: str, place: str) -> Iterator[_Violation]:
    measured = list(_range(shape, len(value), place, f"has {len(value)} characters", " characters"))
    yield from measured
    pattern = shape.metadata.get("pattern")
    if not measured and pattern and (compiled := compile_pattern(pattern)) and not compiled.fullmatch(value):
        shown = "" if _shown(value) in place else f"{_shown(value)} "
        yield _Violation(
            place=place,
            found=f"{shown}is not of the form that the API takes",
            allowed=f"It must match {pattern}",
        )
    known = getattr(shape, "enum", None)
    if known and value not in known:
        yield _Violation(
            place=place,
            found=f"is {value!r}, which the installed botocore does not know",
            allowed=f"{nearest(value, known)} If it is new at AWS, do: pip install -U boto3",
            certain=False,
        )


def _range(shape: Any, number: int, place: str, found: str, unit: str) -> Iterator[_Violation]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if most is not None and number > most:
        yield _Violation(place=place, found=found, allowed=f"The most is {most}{unit}.")
    if least is not None and number < least:
        yield _Violation(place=place, found=found, allowed=f"The least is {least}{unit}.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
