"""The channels that a script reads by name."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from smddp.job.channels import VARIABLE_PREFIX
from smddp.process.script_names import full_name


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelRead:
    """A place where a script reads a channel."""

    name: str
    is_variable: bool
    """Whether the script reads the variable SM_CHANNEL_*, not the job."""


def channel_read(node: ast.AST) -> ChannelRead | None:
    """Return the channel of ``job.channels["training"]``, ``job.inputs[…]`` or ``os.environ["SM_CHANNEL_TRAINING"]``.

    Return None for any other node.
    """
    match node:
        case ast.Subscript(value=owner, slice=ast.Constant(value=str(name)), ctx=ast.Load()):
            text = full_name(owner, {})
            if text in ("job.channels", "job.inputs"):
                return ChannelRead(name=name, is_variable=False)
            if text == "os.environ" and name.startswith(VARIABLE_PREFIX):
                return ChannelRead(name=name.removeprefix(VARIABLE_PREFIX).lower(), is_variable=True)
    return None
