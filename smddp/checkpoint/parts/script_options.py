"""The initial options of a script's optimizers and schedules: saved in a checkpoint, and compared on resume.

A change in a script shows in the initial options only. The values of a later step do not show it, as a schedule or the
training loop may have changed them.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Mapping
from typing import Any, Literal

import torch

OnChange = Literal["keep", "take", "refuse"]
"""What resuming does if optimizer or schedule options, such as the learning rate, differ from the checkpoint's script:
keep the saved options, take this script's, or refuse."""

SCRIPT_OPTIONS = "script_options"
"""The key of the initial options in a saved state."""

TAKE_REMEDY = '; checkpoints=CheckpointPolicy(on_change="take") takes this script\'s'
"""The end of a message about options that differ and are kept."""

_SHOWN = 60
_CLOSE = 1e-9


def copied(value: Any) -> Any:
    """Return a copy of nested state: tensors, dicts and lists are copied, anything else is shared."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, dict):
        return value.copy()  # keeps the kind, such as Counter
    if type(value) in (list, tuple):
        return type(value)(copied(each) for each in value)
    return value


def same(one: Any, other: Any) -> bool:
    """Return whether two options are equal, to the bit."""
    one, other = _plain(one), _plain(other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def close(one: Any, other: Any) -> bool:
    """Return whether two lists of learning rates are equal up to rounding, which varies with PyTorch's version."""
    one, other = _plain(one), _plain(other)
    if not (isinstance(one, list) and isinstance(other, list) and len(one) == len(other)):
        return same(one, other)
    return all(
        math.isclose(a, b, rel_tol=_CLOSE) if isinstance(a, float | int) and isinstance(b, float | int) else same(a, b)
        for a, b in zip(one, other, strict=True)
    )


def change(name: str, saved: object, own: object) -> str:
    """Describe an option's value in the checkpoint's script and in this one."""
    return f"{name} was {_shown(saved)} in the checkpoint's script and is {_shown(own)} in this one"


def describe_function(function: Any) -> dict[str, Any]:
    """Return the comparable facts of a function: its name, its kind, and its plain values.

    The values are a partial's arguments, a closure's variables and defaults, or an object's attributes. Code and global
    variables are not compared.
    """
    if isinstance(function, functools.partial):
        arguments = {f"argument {number}": value for number, value in enumerate(function.args)}
        name, kind, values = _name(function.func), "partial", {**arguments, **function.keywords}
    elif isinstance(function, types.FunctionType):
        name, kind, values = _name(function), "function", {**_closure(function), **_defaults(function)}
    elif isinstance(function, types.MethodType | types.BuiltinFunctionType):
        name, kind, values = _name(function), "function", {}
    else:
        name, kind, values = type(function).__name__, "object", getattr(function, "__dict__", {})
    return {
        "name": name,
        "kind": kind,
        "values": {key: copied(each) for key, each in values.items() if _is_plain(each)},
    }


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _closure(function: types.FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {
        name: cell.cell_contents for name, cell in cells if cell != types.CellType()
    }  # an empty one has no contents


def _defaults(function: types.FunctionType) -> dict[str, Any]:
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    values = function.__defaults__ or ()
    return {
        **dict(zip(positional[len(positional) - len(values) :], values, strict=True)),
        **(function.__kwdefaults__ or {}),
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _plain(value: Any) -> Any:
    """Return a tensor or tuple as a list, and anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    text = str(_plain(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
