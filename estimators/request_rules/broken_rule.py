"""One of AWS's rules that a request breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estimators.service_model import dotted

Request = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """One reason for which AWS would refuse a request."""

    path: tuple[str | int, ...]
    """The path in the request: members, and indices of lists."""
    found: str
    """What the request contains."""
    remedy: str
    """What is allowed instead, and what to do."""

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.found}. {self.remedy}"


def twice_named(path: tuple[str, ...], names: Sequence[str]) -> Iterator[BrokenRule]:
    """Yield the names that occur more than once in a list whose names must be unique."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        yield BrokenRule(path=path, found=f"{', '.join(twice)} comes more than once", remedy="Each must be unique.")
