"""Check the channels that a script reads by name against those that the job gets."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from estimators.errors import Problem, error
from smddp.process.script_names import full_name
from smddp.script_syntax import Executed

_VARIABLE = "SM_CHANNEL_"


def check(nodes: Sequence[Executed], channels: Collection[str]) -> Iterator[Problem]:
    """Yield the channels that every run of the script reads, and that the job does not have."""
    in_capitals = {name.upper() for name in channels}
    read: dict[str, str] = {}
    for module, node in nodes:
        if (name := _channel(node)) is not None and name.upper() not in in_capitals:
            read.setdefault(name, f"{module.path}, line {getattr(node, 'lineno', 1)},")
    for name, place in read.items():
        found = f"{place} reads the channel {name!r}, and the job has {', '.join(channels) or 'none'}"
        remedy = f"Give fit() {{{name!r}: 's3://…'}}."
        if channels:
            remedy = f"Give fit() a channel named {name!r}, or let the script read another name."
        yield error("inputs", found, remedy)


def _channel(node: ast.AST) -> str | None:
    """Return the channel of ``job.channels["training"]``, ``job.inputs[…]`` or ``os.environ["SM_CHANNEL_TRAINING"]``.

    Return None for any other node.
    """
    match node:
        case ast.Subscript(value=owner, slice=ast.Constant(value=str(name)), ctx=ast.Load()):
            text = full_name(owner, {})
            if text in ("job.channels", "job.inputs"):
                return name
            if text == "os.environ" and name.startswith(_VARIABLE):
                return name.removeprefix(_VARIABLE).lower()
    return None
