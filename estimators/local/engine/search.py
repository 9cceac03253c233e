"""Search among training jobs: filters on any property by its dotted name, nested expressions, order and pages.

``HyperParameters.<key>``, ``Tags.<key>`` and ``Metrics.<name>`` name one entry; everything else is the name of a member
of DescribeTrainingJob, such as ``ResourceConfig.InstanceType``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.errors import invalid
from estimators.local.engine.listing import cut_page

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Equals": operator.eq,
    "NotEquals": operator.ne,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqualTo": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqualTo": operator.le,
}


def search_jobs(jobs: Iterable[Mapping[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer Search.

    Args:
        jobs: The descriptions of all jobs, each with its Tags.
        request: The request, already checked.

    Raises:
        ApiError: ValidationException, for another resource than training jobs or a value that can't be compared.
    """
    if request["Resource"] != "TrainingJob":
        raise invalid(f"Search: the resource {request['Resource']} is not here; the local platform has TrainingJob.")
    expression = request.get("SearchExpression", {})
    found = [job for job in jobs if _satisfies(job, expression)]
    page, token = cut_page(
        found, request.get("SortBy", "LastModifiedTime"), {"SortOrder": "Descending"} | dict(request)
    )
    return {"Results": [{"TrainingJob": dict(job)} for job in page], **token}


def _satisfies(job: Mapping[str, Any], expression: Mapping[str, Any]) -> bool:
    answers = [
        *(_passes(job, condition) for condition in expression.get("Filters", ())),
        *(_has_such(job, nested) for nested in expression.get("NestedFilters", ())),
        *(_satisfies(job, inner) for inner in expression.get("SubExpressions", ())),
    ]
    return any(answers) if expression.get("Operator") == "Or" else all(answers)


def _has_such(job: Mapping[str, Any], nested: Mapping[str, Any]) -> bool:
    """Return whether one entry of a list passes all filters; they name its members with the list's name before them."""
    name = nested["NestedPropertyName"]
    return any(
        all(_passes({name: entry}, condition) for condition in nested["Filters"]) for entry in _find(job, name) or ()
    )


def _passes(job: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    value = _find(job, condition["Name"])
    relation: str = condition.get("Operator", "Equals")
    wanted: str | None = condition.get("Value")
    if relation in ("Exists", "NotExists"):
        return (value is not None) == (relation == "Exists")
    if wanted is None:
        raise invalid(f"Search: the filter on {condition['Name']} with the operator {relation} needs a Value.")
    if value is None:
        return relation == "NotEquals"
    if relation == "Contains":
        return wanted in str(value)
    if relation == "In":
        return str(value) in wanted.split(",")
    return bool(_COMPARISONS[relation](*_comparable(value, wanted)))


def _find(job: Mapping[str, Any], name: str) -> Any:
    head, _, rest = name.partition(".")
    match head:
        case "Tags" if rest:
            return next((tag["Value"] for tag in job.get("Tags", ()) if tag["Key"] == rest), None)
        case "Metrics" if rest:
            metrics = job.get("FinalMetricDataList", ())
            return next((metric["Value"] for metric in metrics if metric["MetricName"] == rest), None)
        case "HyperParameters" if rest:
            return job.get("HyperParameters", {}).get(rest)
    value = job.get(head)
    return _find(value, rest) if rest and isinstance(value, Mapping) else None if rest else value


def _comparable(value: Any, wanted: str) -> tuple[Any, Any]:
    """Return both sides as times, numbers or text, by the property's kind, or as numbers if both look like one."""
    if isinstance(value, datetime):
        try:
            return value, parse_to_aware_datetime(wanted)
        except ValueError:
            raise invalid(f"Search: {wanted!r} is not a time; write it like 2030-01-31T12:00:00Z.") from None
    if isinstance(value, bool):
        return str(value).lower(), wanted.lower()
    try:
        return float(value), float(wanted)
    except (TypeError, ValueError):
        return str(value), wanted
