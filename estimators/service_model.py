"""SageMaker's API as the installed botocore knows it, and a walk that finds a value's violations of it.

The plan checks the request it is about to send, the local platform the request it received; each words a `Violation`
itself. Types, names, counts, lengths, patterns and enumerations come from the model, so this file has no copy of them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from botocore.model import ServiceModel

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "boolean": (bool,),
    "list": (list, tuple),
    "map": (Mapping,),
    "structure": (Mapping,),
}
_VALUES = (type(None), *{type_ for types in _TYPES.values() for type_ in types})
_RANGES: Mapping[str, tuple[int, int]] = {"integer": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}
"""The ranges of the service's whole numbers, where the model has no narrower one."""
_JAVA_CLASSES = {
    r"\p{L}": r"\w",
    r"\p{N}": r"\d",
    r"\p{Z}": " \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
    r"\p{Alnum}": "a-zA-Z0-9",
}
"""The model's patterns are Java's. These are the character classes in them, for training jobs, that Python lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One value in a request that breaks a rule of the service model."""

    rule: Literal["type", "required", "unknown", "least", "most", "pattern", "enum", "null"]
    """The broken rule. ``null`` is ours, not the model's: no variable or argument can hold the character U+0000."""
    path: tuple[str | int, ...]
    """Path from the checked value: members of structures, keys of maps, indices of lists."""
    value: Any
    """The offending value; for ``required`` the missing name, for ``unknown`` the unexpected name."""
    limit: Any = None
    """What the model allows: the type, members, number, pattern, or known values."""
    is_name: bool = False
    """Whether the value is a key of the map at `path`."""


@functools.cache
def service_model(service: str = "sagemaker") -> ServiceModel:
    """Return the model of SageMaker, or of a related service such as ``sagemaker-metrics``."""
    import botocore.session

    return botocore.session.get_session().get_service_model(service)


def violations(shape: Any, value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Violation]:
    """Yield the violations in the value of a request's member at `path`.

    A value of any other Python type, such as a pipeline's variable, is skipped: the SDK resolves it later.
    """
    kind = shape.type_name
    # To Python, True is an integer. For a timestamp, or a type new in a later botocore, every value fits.
    fits = kind == "boolean" if isinstance(value, bool) else isinstance(value, _TYPES.get(kind, _VALUES))
    if not fits:
        if isinstance(value, _VALUES):
            yield Violation(rule="type", path=path, value=value, limit=kind)
        return
    yield from _limits(shape, value, path)
    if kind == "structure":
        for name in shape.required_members:
            if name not in value:
                yield Violation(rule="required", path=path, value=name, limit=shape.required_members)
        for name, item in value.items():
            if name in shape.members:
                yield from violations(shape.members[name], item, (*path, name))
            else:
                yield Violation(rule="unknown", path=path, value=name, limit=shape.members)
    elif kind == "list":
        for number, item in enumerate(value):
            yield from violations(shape.member, item, (*path, number))
    elif kind == "map":
        for name, item in value.items():
            yield from (replace(found, is_name=True) for found in violations(shape.key, name, path))
            yield from violations(shape.value, item, (*path, name))


def _limits(shape: Any, value: Any, path: tuple[str | int, ...]) -> Iterator[Violation]:
    lowest, highest = _RANGES.get(shape.type_name, (None, None)) if isinstance(value, int) else (None, None)
    least, most = shape.metadata.get("min", lowest), shape.metadata.get("max", highest)
    if most is not None and size(value) > most:
        yield Violation(rule="most", path=path, value=value, limit=most)
        return  # do not match an overlong text against a pattern
    if least is not None and size(value) < least:
        yield Violation(rule="least", path=path, value=value, limit=least)
        return
    if not isinstance(value, str):
        return
    known, pattern = getattr(shape, "enum", None), shape.metadata.get("pattern")
    if known and value not in known:
        yield Violation(rule="enum", path=path, value=value, limit=known)
    if "\0" in value:
        yield Violation(rule="null", path=path, value=value)
    if pattern and (compiled := _compiled(pattern)) and not compiled.fullmatch(value):
        yield Violation(rule="pattern", path=path, value=value, limit=pattern)


def dotted(path: tuple[str | int, ...]) -> str:
    """Return a path as AWS writes it: ``InputDataConfig[0].ChannelName``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def size(value: Any) -> float:
    """Return what ``least`` and ``most`` limit: a number itself, a text's length, or the number of entries."""
    return value if isinstance(value, (int, float)) else len(value)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Return the pattern for Python, or None for one of the few that Python can't express: only AWS can check those."""
    for java, python in _JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    try:
        return re.compile(pattern)
    except re.error:
        return None
