"""What the local platform does with the members of a request; each kind of job has its `RULES` beside its request."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class Support(enum.Enum):
    """What the platform does with a member."""

    HONOURED = "honoured"
    RECORDED = "recorded"
    """The job's description shows the member, which has no effect; the job's log says so."""
    REFUSED = "refused"


@dataclass(kw_only=True, slots=True, frozen=True)
class Rule:
    """The fate of one member, and of its nested members without a rule of their own."""

    support: Support
    note: str = ""
    """A remark for the table in the docs."""
    said: bool = True
    """Whether the log says that the member is only recorded; False if it could have no effect here."""


def rule_of(path: str, rules: Mapping[str, Rule]) -> Rule | None:
    """Return the rule of a member, such as ``VpcConfig.Subnets``, or of its nearest parent with a rule; else None."""
    while path and path not in rules:
        path = path.rpartition(".")[0]
    return rules.get(path)


def only_recorded(members: Mapping[str, Any], rules: Mapping[str, Rule]) -> list[str]:
    """Return the paths of a request's members that have no effect though the author may expect one."""
    asked = dict.fromkeys(_paths(members))
    return [path for path, rule in rules.items() if path in asked and rule.support is Support.RECORDED and rule.said]


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all members in a request that are neither false nor empty."""
    if isinstance(value, list):
        for each in value:
            yield from _paths(each, path)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if inner not in (False, "", [], {}):
                yield (inside := f"{path}.{name}".lstrip("."))
                yield from _paths(inner, inside)
