"""Checks a request against botocore's own model of the service.

botocore's `ParamValidator` checks names, types, required members and lower limits; upper limits, patterns and enums are
in the same model but are left to the service, which here is us.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import botocore.session
from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, Shape, StringShape, StructureShape
from botocore.validate import ParamValidator

from estimators.local.engine.errors import invalid

_JAVA_CLASSES = {
    r"\p{L}": r"\w",
    r"\p{N}": r"\d",
    r"\p{Z}": " \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
    r"\p{Alnum}": "a-zA-Z0-9",
}
"""The model's patterns are Java's; these are the classes in those of training jobs that Python lacks."""
_MANY = 12


@functools.cache
def service_model() -> ServiceModel:
    """SageMaker's model, as the installed botocore knows it."""
    return botocore.session.get_session().get_service_model("sagemaker")


def operation_model(operation: str) -> OperationModel:
    """The model of one operation."""
    return service_model().operation_model(operation)


def check_request(operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Check a request's form; the rules between its members are `TrainingRequest`'s.

    Returns:
        The request itself.

    Raises:
        ApiError: ValidationException, with everything that is wrong.
    """
    shape = operation_model(operation).input_shape
    assert shape is not None
    try:
        report = ParamValidator().validate(request, shape)
    except (RuntimeError, OverflowError) as error:  # a number that is no time on any calendar
        raise invalid(f"{operation}: a time is out of range: {error}") from None
    if report.has_errors():
        raise invalid(report.generate_report())
    problems = list(_violations(request, shape, ""))
    if problems:
        plural = "s" if len(problems) > 1 else ""
        raise invalid(f"{len(problems)} validation error{plural} detected: {'; '.join(problems)}")
    return cast("dict[str, Any]", request)


def _violations(value: Any, shape: Shape, path: str) -> Iterator[str]:
    """What `ParamValidator` leaves unchecked, in the words that AWS uses."""
    for constraint in _broken_constraints(value, shape):
        shown = value if isinstance(value, int | float) else f"'{str(value)[:100]}'"
        yield f"Value {shown} at '{path}' failed to satisfy constraint: {constraint}"
    if isinstance(shape, StructureShape):
        for name, member in value.items():
            yield from _violations(member, shape.members[name], f"{path}.{name}".lstrip("."))
    elif isinstance(shape, ListShape):
        for index, item in enumerate(value):
            yield from _violations(item, shape.member, f"{path}[{index}]")
    elif isinstance(shape, MapShape):
        for key, item in value.items():
            yield from _violations(key, shape.key, f"{path} (key)")
            yield from _violations(item, shape.value, f"{path}.{key}")


def _broken_constraints(value: Any, shape: Shape) -> Iterator[str]:
    if isinstance(value, bool) and shape.type_name != "boolean":
        yield f"Member must be of type {shape.type_name}"  # to Python, and botocore, true is an integer
        return
    limit = shape.metadata.get("max")
    if limit is not None:
        if shape.type_name in ("integer", "long", "float", "double"):
            if value > limit:
                yield f"Member must have value less than or equal to {limit}"
        elif len(value) > limit:
            yield f"Member must have length less than or equal to {limit}; it has {len(value)}"
            return  # an over-long text is not matched against a pattern
    if not isinstance(shape, StringShape):
        return
    if shape.enum and value not in shape.enum:
        yield f"Member must satisfy enum value set: {_choices(value, shape.enum)}"
    if "\0" in value:
        yield "Member must not have the character U+0000, which neither a variable nor an argument can hold"
    pattern = shape.metadata.get("pattern")
    compiled = _compiled(pattern) if pattern else None
    if compiled and not compiled.fullmatch(value):
        yield f"Member must satisfy regular expression pattern: {pattern}"


def _choices(value: str, allowed: list[str]) -> str:
    if len(allowed) <= _MANY:
        return f"[{', '.join(allowed)}]"
    near = difflib.get_close_matches(value, allowed, n=3)
    return f"one of {len(allowed)}" + (f", the nearest are {', '.join(near)}" if near else "")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """The pattern for Python; None for one of the few that it can't express, which AWS alone can check."""
    for java, python in _JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    try:
        return re.compile(pattern)
    except re.error:
        return None
