"""SageMaker's API as the installed botocore knows it, and what it does not allow in a value: one walk over a shape.

The plan walks what it is about to send, the local platform what it was sent; each tells a `Violation` in words of its
own. Types, names, counts, lengths, patterns and enumerations are read from the model, so there is no copy of them here.
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
_JAVA_CLASSES = {
    r"\p{L}": r"\w",
    r"\p{N}": r"\d",
    r"\p{Z}": " \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
    r"\p{Alnum}": "a-zA-Z0-9",
}
"""The model's patterns are Java's; these are the classes in those of training jobs that Python lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that the model does not allow."""

    rule: Literal["type", "required", "unknown", "least", "most", "pattern", "enum", "null"]
    """Which of its rules is broken; ``null`` is ours: no variable or argument can hold the character U+0000."""
    path: tuple[str | int, ...]
    """Where, from the value that was checked: members, names in a map, numbers in a list."""
    value: Any
    """What is there; of ``required`` and ``unknown``, the name that is missing, or has no place there."""
    limit: Any = None
    """What the model says: the type, the members, the number, the pattern, or the known values."""
    is_name: bool = False
    """Whether the value is a name in the map that lies at `path`."""


@functools.cache
def service_model(service: str = "sagemaker") -> ServiceModel:
    """Return SageMaker's model, or that of a service beside it, such as ``sagemaker-metrics``."""
    import botocore.session

    return botocore.session.get_session().get_service_model(service)


def violations(shape: Any, value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Violation]:
    """Yield what the model does not allow in a value.

    Args:
        shape: What the value is to be, from the model.
        value: As a request holds it. A value, or one in it, that no request can hold stands for one that the SDK will
            know later, such as a pipeline's variable: it is passed over.
        path: Where it lies.
    """
    kind = shape.type_name
    # To Python, True is an integer. Of a time, or a kind that a later botocore brings, any value may be meant.
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
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if most is not None and size(value) > most:
        yield Violation(rule="most", path=path, value=value, limit=most)
        return  # a text that is too long is not matched against a pattern
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
    """Return what ``least`` and ``most`` measure: a number itself, a text's length, or how many entries there are."""
    return value if isinstance(value, (int, float)) else len(value)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Return the pattern for Python; None for one of the few that it can't express, which AWS alone can check."""
    for java, python in _JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    try:
        return re.compile(pattern)
    except re.error:
        return None
