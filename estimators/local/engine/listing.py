"""Lists of records and Search: filters, order and pages.

A filter of Search names a property: ``HyperParameters.<key>``, ``Parameters.<key>``, ``Tags.<key>`` and
``Metrics.<name>`` name one entry. A metric of a trial component may have ``.Min``, ``.Max``, ``.Avg``, ``.StdDev``,
``.Last`` or ``.Count`` after its name. Every other name is a member of the description in any case, such as
``ResourceConfig.InstanceType``. A filter on a list, such as ``Parents.TrialName``, passes if one entry does.
"""

from __future__ import annotations

import base64
import json
import operator
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Any

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.errors import invalid

DEFAULT_PAGE = 10
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Equals": operator.eq,
    "NotEquals": operator.ne,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqualTo": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqualTo": operator.le,
}
_RESULTS = {
    "TrainingJob": "TrainingJob",
    "Experiment": "Experiment",
    "ExperimentTrial": "Trial",
    "ExperimentTrialComponent": "TrialComponent",
}
"""The resources that can be searched, and their members in a result. ``<result>Name`` is a record's name."""
_STATISTICS = frozenset({"min", "max", "avg", "stddev", "last", "count"})


def list_jobs(
    jobs: Iterable[Mapping[str, Any]], request: Mapping[str, Any], *, word: str, members: Iterable[str], sort_by: str
) -> dict[str, Any]:
    """Answer the List operation of a kind of job: one page of the jobs that pass the request's filters.

    ``word`` begins the names of the kind's members: ``TrainingJob``. ``members`` are the members of a summary, and
    ``sort_by`` is the order without SortBy. Raise ApiError for an invalid NextToken.
    """
    name, status = f"{word}Name", f"{word}Status"
    wanted = [
        job
        for job in jobs
        if request.get("NameContains", "").lower() in job[name].lower()
        and request.get("StatusEquals", job[status]) == job[status]
        and _is_in_time(job, request)
    ]
    order = {"Name": name, "Status": status, "CreationTime": "CreationTime"}[request.get("SortBy", sort_by)]
    page, token = cut_page(wanted, order, request, name=name)
    shown = tuple(members)
    return {f"{word}Summaries": [{member: job[member] for member in shown if member in job} for job in page], **token}


def cut_page(
    records: Iterable[Mapping[str, Any]], member: str, request: Mapping[str, Any], *, name: str
) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """Return the records of one page in the order of ``member``, and the token of the next page, if any.

    A token holds the last record's position in the order, so pages stay correct while records come and go.
    """
    descending = request.get("SortOrder") == "Descending"
    keyed = sorted(
        ((_sort_key(record, member, name), record) for record in records), key=itemgetter(0), reverse=descending
    )
    if "NextToken" in request:
        last = _read_token(request["NextToken"])
        keyed = [(key, record) for key, record in keyed if (key < last if descending else key > last)]
    page = keyed[: request.get("MaxResults", DEFAULT_PAGE)]
    return [record for _, record in page], {"NextToken": _token(page[-1][0])} if len(keyed) > len(page) else {}


def _is_in_time(job: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    for member in ("CreationTime", "LastModifiedTime"):
        after, before = request.get(f"{member}After"), request.get(f"{member}Before")
        if after is not None and job[member] <= parse_to_aware_datetime(after):
            return False
        if before is not None and job[member] >= parse_to_aware_datetime(before):
            return False
    return True


def _sort_key(record: Mapping[str, Any], member: str, name: str) -> tuple[str, float, str]:
    """Return a record's sort key: a text, then a number (one of the two is empty), then its name."""
    value = record.get(member)
    if isinstance(value, datetime):
        return ("", value.timestamp(), record[name])
    if isinstance(value, int | float):
        return ("", float(value), record[name])
    return ("" if value is None else str(value), 0.0, record[name])


def _token(key: tuple[str, float, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def _read_token(token: str) -> tuple[str, float, str]:
    try:
        text, number, name = json.loads(base64.urlsafe_b64decode(token))
        return (str(text), float(number), str(name))
    except (ValueError, TypeError):
        raise invalid("NextToken is not one that this platform gave; start again without it.") from None


class _Several(list[Any]):
    """The values of a property in the entries of a list."""


def search_records(records: Callable[[str], Iterable[Mapping[str, Any]]], request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer Search; ``records`` returns the descriptions of all records of a resource, with their Tags.

    Raise ApiError for an unknown resource, or a value that can't be compared.
    """
    resource = request["Resource"]
    if resource not in _RESULTS:
        raise invalid(f"Search: the resource {resource} is not here; the local platform has {', '.join(_RESULTS)}.")
    expression, sort_by = request.get("SearchExpression", {}), request.get("SortBy", "LastModifiedTime")
    name = f"{_RESULTS[resource]}Name"
    found = [
        {"record": record, "key": _find(record, sort_by), name: record[name]}
        for record in records(resource)
        if _satisfies(record, expression)
    ]
    page, token = cut_page(found, "key", {"SortOrder": "Descending"} | dict(request), name=name)
    return {"Results": [{_RESULTS[resource]: dict(each["record"])} for each in page], **token}


def _satisfies(record: Mapping[str, Any], expression: Mapping[str, Any]) -> bool:
    answers = [
        *(_passes(record, condition) for condition in expression.get("Filters", ())),
        *(_has_such(record, nested) for nested in expression.get("NestedFilters", ())),
        *(_satisfies(record, inner) for inner in expression.get("SubExpressions", ())),
    ]
    return any(answers) if expression.get("Operator") == "Or" else all(answers)


def _has_such(record: Mapping[str, Any], nested: Mapping[str, Any]) -> bool:
    """Return whether one entry of a list passes all filters, whose names begin with the list's name."""
    name = nested["NestedPropertyName"]
    conditions = [{**each, "Name": each["Name"].removeprefix(f"{name}.")} for each in nested["Filters"]]
    entries = _find(record, name)
    return isinstance(entries, list) and any(
        all(_passes(entry, condition) for condition in conditions) for entry in entries if isinstance(entry, Mapping)
    )


def _passes(record: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    value = _find(record, condition["Name"])
    if not isinstance(value, _Several):
        return _fits(value, condition)
    fits = [_fits(each, condition) for each in value]
    return all(fits) if condition.get("Operator") in ("NotEquals", "NotExists") else any(fits)


def _fits(value: Any, condition: Mapping[str, Any]) -> bool:
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


def _find(record: Mapping[str, Any], name: str) -> Any:
    head, _, rest = name.partition(".")
    match head.lower():
        case "tags" if rest:
            return next((tag["Value"] for tag in record.get("Tags", ()) if tag["Key"] == rest), None)
        case "metrics" if rest:
            return _metric(record, rest)
        case "hyperparameters" if rest:
            return record.get("HyperParameters", {}).get(rest)
        case "parameters" if rest:
            parameter: Mapping[str, Any] = record.get("Parameters", {}).get(rest, {})
            return next(iter(parameter.values()), None)
    member = head if head in record else next((each for each in record if each.lower() == head.lower()), "")
    value = record.get(member)
    if not rest:
        return value
    if isinstance(value, list):
        entries = [_find(entry, rest) for entry in value if isinstance(entry, Mapping)]
        return _Several(entry for entry in entries if entry is not None) or None
    return _find(value, rest) if isinstance(value, Mapping) else None


def _metric(record: Mapping[str, Any], name: str) -> Any:
    """Return the last value of a training job's metric, or a statistic of a trial component's."""
    for metric in record.get("FinalMetricDataList", ()):
        if metric["MetricName"] == name:
            return metric["Value"]
    bare, _, statistic = name.rpartition(".")
    for asked, kind in ((bare, statistic.lower()), (name, "last")):  # a metric's own name may end like a statistic
        for metric in record.get("Metrics", ()):
            if metric["MetricName"] == asked and kind in _STATISTICS:
                return next((value for member, value in metric.items() if member.lower() == kind), None)
    return None


def _comparable(value: Any, wanted: str) -> tuple[Any, Any]:
    """Return both sides as times or text, by the property's type, or as numbers if both can be parsed."""
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
