"""Compare the requests of some jobs, member by member."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estimators.secret_text import masked


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One member of the requests."""

    name: str
    values: Sequence[str | None]
    """The masked value in each job's request, or None if absent."""
    differs: bool


def rows(requests: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one row for each member of some requests, including nested members; those that differ come first."""
    raw = [dict(_members(request)) for request in requests]
    shown = [dict(_members(masked(request))) for request in requests]
    found = []
    for name in dict.fromkeys(name for each in raw for name in each):
        differs = len({each.get(name) for each in raw}) > 1
        found.append(Row(name=name, values=[each.get(name) for each in shown], differs=differs))
    return sorted(found, key=lambda row: not row.differs)


def _members(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _members(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _members(each, f"{path}[{number}]")
    else:
        yield path, str(value)
