"""Checks a request against botocore's model of the service.

botocore's `ParamValidator` checks names, types, required members and lower limits. Upper limits, patterns and enums are
in the same model, but botocore leaves them to the service: here they are checked, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from botocore.validate import ParamValidator

from estimators.errors import nearest
from estimators.local.engine.errors import invalid
from estimators.service_model import Violation, dotted, service_model, size, violations

Handler = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes a request already checked against the service's model, and returns the answer."""
PUT_METRICS = "BatchPutMetrics"
"""The only operation here of SageMaker Metrics, a separate service that is signed for as SageMaker."""


def check_request(operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Check a request's form, and return the request; raise one ApiError with everything that is wrong.

    `request_rules` checks the rules between members.
    """
    service = "sagemaker-metrics" if operation == PUT_METRICS else "sagemaker"
    shape = service_model(service).operation_model(operation).input_shape
    assert shape is not None
    try:
        report = ParamValidator().validate(request, shape)
    except (RuntimeError, OverflowError) as error:  # a number outside the range of datetime
        raise invalid(f"{operation}: a time is out of range: {error}") from None
    if report.has_errors():
        raise invalid(report.generate_report())
    problems = [_tell(violation) for violation in violations(shape, request)]
    if problems:
        plural = "s" if len(problems) > 1 else ""
        raise invalid(f"{len(problems)} validation error{plural} detected: {'; '.join(problems)}")
    return cast("dict[str, Any]", request)


def _tell(violation: Violation) -> str:
    """Return AWS's message for a violation that `ParamValidator` does not check."""
    value = violation.value
    path = dotted(violation.path)
    where = f"{path} (key)" if violation.is_name else path
    shown = f"{value}"[:100] if isinstance(value, int | float) else f"'{str(value)[:100]}'"
    return f"Value {shown} at '{where}' failed to satisfy constraint: Member must {_constraint(violation)}"


def _constraint(violation: Violation) -> str:
    value, limit = violation.value, violation.limit
    match violation.rule:
        case "type":
            return f"be of type {limit}"
        case "least" | "most" as bound:
            compared = f"{'less' if bound == 'most' else 'greater'} than or equal to {limit}"
            numeric = isinstance(value, (int, float))
            return f"have value {compared}" if numeric else f"have length {compared}; it has {size(value)}"
        case "enum":
            return f"satisfy enum value set. {nearest(value, limit)}"
        case "pattern":
            return f"satisfy regular expression pattern: {limit}"
        case "null":
            return "not have the character U+0000, which neither a variable nor an argument can hold"
        case "required" | "unknown" as rule:
            raise AssertionError(f"ParamValidator let {value} pass, which is {rule}")
