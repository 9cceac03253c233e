"""Check the channels that a script reads by name against those that the job gets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from estimators.errors import Problem, error
from smddp.script_syntax import Executed, channel_read


def check(nodes: Sequence[Executed], channels: Collection[str]) -> Iterator[Problem]:
    """Yield the channels that every run of the script reads, and that the job does not have."""
    in_capitals = {name.upper() for name in channels}
    read: dict[str, str] = {}
    for module, node in nodes:
        if (found_read := channel_read(node)) is not None and found_read.name.upper() not in in_capitals:
            read.setdefault(found_read.name, f"{module.path}, line {getattr(node, 'lineno', 1)},")
    for name, place in read.items():
        found = f"{place} reads the channel {name!r}, and the job has {', '.join(channels) or 'none'}"
        remedy = f"Give fit() {{{name!r}: 's3://…'}}."
        if channels:
            remedy = f"Give fit() a channel named {name!r}, or let the script read another name."
        yield error("inputs", found, remedy)
