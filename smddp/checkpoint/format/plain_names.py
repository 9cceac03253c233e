"""Names of weights without the part that ``torch.compile`` adds.

``torch.compile(part)`` wraps the part in a module ``_orig_mod``, whose name becomes part of its weights' names. Saved
weights have plain names, and loading matches plain names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

METADATA = "_metadata"
"""The attribute in which ``torch.nn.Module.state_dict()`` keeps the versions of its modules."""
_COMPILED = "_orig_mod"


def plain_name(name: str) -> str:
    """Return the name of a weight or a module without torch.compile's part.

    Examples:
        >>> plain_name("encoder._orig_mod.0.weight"), plain_name("encoder._orig_mod")
        ('encoder.0.weight', 'encoder')
    """
    return ".".join(each for each in name.split(".") if each != _COMPILED) if _COMPILED in name else name


def plain_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a module's state dict with plain names; the same object if they are plain."""
    return _renamed(state, plain_name) if _is_compiled(state) else state


def in_names_of(own: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a saved state with the names of a module's ``own`` state dict; the same object if nothing is compiled."""
    if not _is_compiled(own):
        return plain_state(state)
    names = {plain_name(name): name for name in [*getattr(own, METADATA, {}), *own]}
    return _renamed(state, lambda name: names.get(plain_name(name), name))


def _is_compiled(names: Iterable[object]) -> bool:
    return any(isinstance(name, str) and _COMPILED in name for name in names)


def _renamed(state: Mapping[str, Any], rename: Callable[[str], str]) -> Mapping[str, Any]:
    renamed = OrderedDict((rename(name), value) for name, value in state.items())
    if (versions := getattr(state, METADATA, None)) is not None:
        # The compiled module comes after its wrapper of the same plain name, so its version wins.
        setattr(renamed, METADATA, OrderedDict((rename(name), version) for name, version in versions.items()))
    return renamed
