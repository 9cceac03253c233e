"""Decodes hyperparameters into a dataclass: matches keys to fields, and reports unknown keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from smddp.job.hyperparameters.raw_values import from_raw
from smddp.job.hyperparameters.schema import fields_of, nested_dataclass, resolve, unknown
from smddp.job.hyperparameters.typed_values import build

T = TypeVar("T")

_PLATFORM_PREFIX = "sagemaker_"
_PLATFORM_NAMES = frozenset({"mp_parameters", "_tuning_objective_metric", "default_user_module_name"})


class _Parts(dict[str, Any]):
    """Values for single fields of a dataclass."""


def decode(cls: type[T], raw: Mapping[str, Any]) -> T:
    """Make a dataclass from the content of hyperparameters.json; raise HyperparameterError with all problems at once.

    A text is JSON if it then fits the field's type (as V2 and our ``encode`` send it); otherwise the value itself (as
    V3 and others send a str); otherwise the value in another spelling: ``True``, ``None`` and ``(1, 2)`` as Python
    writes them, ``yes``, ``no``, ``on``, ``off``, ``1`` and ``0`` for a bool, ``"5"`` with its quotes for an int. In a
    union with str, Python's ``True`` and ``None`` have priority over the text itself. Values that are not text are JSON
    data. Keys may be written with dashes, and name a field of a nested dataclass with a dot. The SDK's own keys,
    ``sagemaker_...`` and ``mp_parameters``, are ignored unless they are fields.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Config:
        ...     epochs: int
        ...     optimizer: str = "sgd"
        >>> decode(Config, {"epochs": "5", "optimizer": '"adam"', "sagemaker_region": '"eu-west-1"'})
        Config(epochs=5, optimizer='adam')
        >>> decode(Config, {"epochs": "5", "optimizer": "adam"})
        Config(epochs=5, optimizer='adam')
    """
    fields = fields_of(cls)
    return assemble(cls, {key: value for key, value in raw.items() if key in fields or not _is_platforms(key)})


def decode_untyped(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's hyperparameters without a dataclass: each one parsed as JSON, or its text if it is not JSON.

    Examples:
        >>> decode_untyped({"epochs": "5", "optimizer": "adam", "sagemaker_region": '"eu-west-1"'})
        {'epochs': 5, 'optimizer': 'adam'}
    """
    return {key: from_raw(Any, value, key) for key, value in raw.items() if not _is_platforms(key)}


def assemble(cls: type[T], given: Mapping[str, Any], problems: Sequence[str] = ()) -> T:
    """Make a dataclass from values by dotted name; raise HyperparameterError for ``problems`` and new ones at once.

    A key that names a field twice is a problem, too.
    """
    parts, found = _Parts(), list(problems)
    for key, value in given.items():
        path = resolve(cls, key)
        if path is None:
            found.append(unknown(cls, key))
        elif not _put(parts, path, value):
            found.append(f"{'.'.join(path)} is given twice, the second time by {key!r}")
    result: T = build(cls, parts, _field, problems=found)
    return result


def _field(annotation: Any, given: Any, name: str, current: Any) -> Any:
    if not isinstance(given, _Parts):
        return from_raw(annotation, given, name)
    nested = nested_dataclass(annotation)
    assert nested is not None, "resolve() goes into dataclasses only"
    return build(nested, given, _field, prefix=f"{name}.", base=current if type(current) is nested else None)


def _put(parts: _Parts, path: tuple[str, ...], value: Any) -> bool:
    *heads, last = path
    for head in heads:
        inner = parts.setdefault(head, _Parts())
        if not isinstance(inner, _Parts):
            return False
        parts = inner
    if last in parts:
        return False
    parts[last] = value
    return True


def _is_platforms(key: str) -> bool:
    return key.startswith(_PLATFORM_PREFIX) or key in _PLATFORM_NAMES
