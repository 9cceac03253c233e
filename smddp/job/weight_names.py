"""The names of a module's weights: the same whether parts of it are compiled or not.

``torch.compile(part)`` is a module around the part, ``_orig_mod``, whose name stands in the names of all weights in it.
What is saved has the plain names, and what is loaded is found by them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

METADATA = "_metadata"
"""Where ``torch.nn.Module.state_dict()`` keeps the versions of its modules."""
_COMPILED = "_orig_mod"


def plain_name(name: str) -> str:
    """Return the name of a weight, or of a module, without torch.compile.

    Examples:
        >>> plain_name("encoder._orig_mod.0.weight"), plain_name("encoder._orig_mod")
        ('encoder.0.weight', 'encoder')
    """
    return ".".join(each for each in name.split(".") if each != _COMPILED) if _COMPILED in name else name


def plain_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a module's state dict by plain names; the same one if they are."""
    return _renamed(state, plain_name) if _is_compiled(state) else state


def in_names_of(own: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a saved state by the names that a module's own state dict has; the same one if they are.

    Args:
        own: The state dict of the module that is to take it.
        state: Of a module of which other parts were compiled, perhaps.
    """
    if not _is_compiled(own):
        return plain_state(state)
    names = {plain_name(name): name for name in [*getattr(own, METADATA, {}), *own]}
    return _renamed(state, lambda name: names.get(plain_name(name), name))


def _is_compiled(names: Iterable[object]) -> bool:
    return any(isinstance(name, str) and _COMPILED in name for name in names)


def _renamed(state: Mapping[str, Any], rename: Callable[[str], str]) -> Mapping[str, Any]:
    renamed = OrderedDict((rename(name), value) for name, value in state.items())
    if (versions := getattr(state, METADATA, None)) is not None:
        # What is compiled comes after the module around it, and its version is the one that counts.
        setattr(renamed, METADATA, OrderedDict((rename(name), version) for name, version in versions.items()))
    return renamed
