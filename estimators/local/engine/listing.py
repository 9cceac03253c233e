"""The filters, order and pages that all lists share."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Any

from botocore.utils import parse_to_aware_datetime

from estimators.local.engine.errors import invalid

DEFAULT_PAGE = 10


def list_records(
    records: Iterable[Mapping[str, Any]], request: Mapping[str, Any], *, name: str, status: str, sort_by: str
) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """Return one page of the records that pass a request's filters, and the token of the next page.

    ``name``, ``status`` and ``sort_by`` name members of the records. Raise ApiError for an invalid NextToken.
    """
    wanted = [
        record
        for record in records
        if request.get("NameContains", "").lower() in record[name].lower()
        and request.get("StatusEquals", record[status]) == record[status]
        and _is_in_time(record, request)
    ]
    return cut_page(wanted, sort_by, request, name=name)


def cut_page(
    records: Iterable[Mapping[str, Any]], member: str, request: Mapping[str, Any], *, name: str
) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """Return the records of one page in the order of ``member``, and the token of the next page, if any.

    A token holds the last record's position in the order, so pages stay correct while records come and go.
    """
    descending = request.get("SortOrder") == "Descending"
    placed = sorted(
        ((_place(record, member, name), record) for record in records), key=itemgetter(0), reverse=descending
    )
    if "NextToken" in request:
        last = _read_token(request["NextToken"])
        placed = [(place, record) for place, record in placed if (place < last if descending else place > last)]
    page = placed[: request.get("MaxResults", DEFAULT_PAGE)]
    return [record for _, record in page], {"NextToken": _token(page[-1][0])} if len(placed) > len(page) else {}


def _is_in_time(job: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    for member in ("CreationTime", "LastModifiedTime"):
        after, before = request.get(f"{member}After"), request.get(f"{member}Before")
        if after is not None and job[member] <= parse_to_aware_datetime(after):
            return False
        if before is not None and job[member] >= parse_to_aware_datetime(before):
            return False
    return True


def _place(record: Mapping[str, Any], member: str, name: str) -> tuple[str, float, str]:
    """Return a record's sort key: a text, then a number (one of the two is empty), then its name."""
    value = record.get(member)
    if isinstance(value, datetime):
        return ("", value.timestamp(), record[name])
    if isinstance(value, int | float):
        return ("", float(value), record[name])
    return ("" if value is None else str(value), 0.0, record[name])


def _token(place: tuple[str, float, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _read_token(token: str) -> tuple[str, float, str]:
    try:
        text, number, name = json.loads(base64.urlsafe_b64decode(token))
        return (str(text), float(number), str(name))
    except (ValueError, TypeError):
        raise invalid("NextToken is not one that this platform gave; start again without it.") from None
