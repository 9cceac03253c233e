"""The schema of a hyperparameter dataclass: its fields, their types in words, and the keys that name them."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import PurePath
from types import NoneType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from smddp.errors import HyperparameterError
from smddp.job.near_names import near_name

_NAMES: dict[object, str] = {type(None): "None", Any: "Any", Ellipsis: "..."}


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One hyperparameter."""

    name: str
    annotation: Any
    default: Any
    """``dataclasses.MISSING`` if the field is required."""

    @property
    def required(self) -> bool:
        """Whether the field has no default."""
        return self.default is MISSING

    def __str__(self) -> str:
        default = " (required)" if self.required else f" = {show(self.default)}"
        return f"{self.name}: {describe(self.annotation)}{default}"


def fields_of(cls: type) -> dict[str, Field]:
    """Return the init fields of a dataclass by name; raise HyperparameterError if it or a type is not usable."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise HyperparameterError(f"{cls!r} is not a dataclass: hyperparameters need one, with a type for each field.")
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise HyperparameterError(f"An annotation of {cls.__name__} can't be resolved: {error}.") from error
    return {
        entry.name: Field(name=entry.name, annotation=_annotation(entry, hints), default=_default(entry))
        for entry in dataclasses.fields(cls)
        if entry.init
    }


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the annotation itself as the only member."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def nested_dataclass(annotation: Any) -> type | None:
    """Return the dataclass in an annotation, alone or as the only one of a union; None otherwise."""
    nested = [member for member in members(annotation) if is_dataclass_type(member)]
    return nested[0] if len(nested) == 1 else None


def is_dataclass_type(annotation: Any) -> bool:
    """Return whether an annotation is a dataclass."""
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def is_path_type(annotation: Any) -> bool:
    """Return whether an annotation is one of pathlib's classes."""
    return isinstance(annotation, type) and issubclass(annotation, PurePath)


def describe(annotation: Any) -> str:
    """Return a type as a user writes it: ``list[int] | None``."""
    if annotation in _NAMES:
        return _NAMES[annotation]
    if len(members(annotation)) > 1:
        return " | ".join(describe(member) for member in members(annotation))
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return f"Literal[{', '.join(show(option) for option in arguments)}]"
    name: str = getattr(annotation, "__name__", repr(annotation))
    return f"{name}[{', '.join(describe(argument) for argument in arguments)}]" if arguments else name


def show(value: object) -> str:
    """Return a value for an error message, in at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def resolve(cls: type, key: str) -> tuple[str, ...] | None:
    """Return the path of a key's fields, None if unknown: ``batch-size`` is batch_size, ``model.depth`` is nested."""
    head, _, rest = key.partition(".")
    fields = fields_of(cls)
    name = head if head in fields else head.replace("-", "_")
    if name not in fields:
        return None
    if not rest:
        return (name,)
    nested = nested_dataclass(fields[name].annotation)
    path = resolve(nested, rest) if nested is not None else None
    return None if path is None else (name, *path)


def paths(cls: type) -> dict[str, Field]:
    """Return every field by its dotted name, fields of nested dataclasses after the field that contains them."""
    return dict(_paths(cls, "", (cls,)))


def _paths(cls: type, prefix: str, around: tuple[type, ...]) -> Iterator[tuple[str, Field]]:
    for name, field in fields_of(cls).items():
        yield prefix + name, field
        nested = nested_dataclass(field.annotation)
        if nested is not None and nested not in around:
            yield from _paths(nested, f"{prefix}{name}.", (*around, nested))


def unknown(cls: type, key: str) -> str:
    """Return the error for a key that names no field, with the nearest name."""
    if key.replace("-", "_") == "local_rank":
        return (
            f"unknown hyperparameter {key!r}, which torch.distributed.launch adds: start the script by torchrun or "
            "smddp run"
        )
    near = near_name(key.replace("-", "_"), paths(cls))
    return f"unknown hyperparameter {key!r}" + (f" (did you mean {near!r}?)" if near else "")


def _annotation(entry: dataclasses.Field[Any], hints: Mapping[str, Any]) -> Any:
    """Return a field's type; that of ``name: str = None`` is ``str | None``, as type checkers have long read it."""
    annotation = hints[entry.name]
    is_optional = entry.default is not None or annotation in (Any, object) or NoneType in members(annotation)
    return annotation if is_optional else annotation | None


def _default(entry: dataclasses.Field[Any]) -> Any:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()
