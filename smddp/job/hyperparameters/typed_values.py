"""Converts one typed value to JSON and back, by its annotation.

It is strict: True is not an int, "5" is not an int, a list is not a tuple unless the annotation says so. A value that
would come back as another member of its union is refused at encoding. pydantic does not fit: it reads an Enum by value
only, reports a list's element without its index, and makes the import three times as long.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from smddp.errors import HyperparameterError
from smddp.job.hyperparameters.schema import (
    describe,
    fields_of,
    is_dataclass_type,
    is_path_type,
    members,
    nested_dataclass,
    show,
    unknown,
)

SUPPORTED = "bool, int, float, str, None, list, tuple, dict, Literal, Enum, Path, dataclasses, unions of these, and Any"


def to_json(annotation: Any, value: Any, name: str, *, exact: bool = False) -> Any:
    """Return the value as JSON data; raise HyperparameterError if it does not have the type, or can't be sent.

    ``name`` names the hyperparameter in errors; ``exact`` refuses an int for a float.
    """
    if len(members(annotation)) > 1:
        return _union_to_json(annotation, value, name, exact=exact)
    container, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if container is Literal:
        if any(type(option) is type(value) and option == value for option in arguments):
            return value.name if isinstance(value, Enum) else value
    elif is_dataclass_type(annotation):
        if type(value) is annotation:
            return {
                key: to_json(field.annotation, getattr(value, key), f"{name}.{key}", exact=exact)
                for key, field in fields_of(annotation).items()
            }
    elif is_path_type(annotation):
        if isinstance(value, annotation):
            return str(value)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        if isinstance(value, annotation) and value.name in annotation.__members__:
            return value.name
    elif annotation is Any or annotation is object:
        if _is_plain(value):
            return value
    elif container is dict:
        if type(value) is dict:
            return _dict_to_json(arguments, value, name, exact=exact)
    elif container in (list, tuple):
        if type(value) is container:
            elements = _elements(container, arguments, value, annotation, name)
            return [to_json(element, item, f"{name}[{i}]", exact=exact) for i, (element, item) in enumerate(elements)]
    elif _is_scalar(annotation, name):
        return _scalar(annotation, value, name, exact=exact)
    raise _mismatch(annotation, value, name)


def from_json(annotation: Any, value: Any, name: str, *, exact: bool = False) -> Any:
    """Return the typed value of JSON data, the inverse of `to_json`. Raise HyperparameterError if it does not fit."""
    if len(members(annotation)) > 1:
        return _union_from_json(annotation, value, name, exact=exact)
    container, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if container is Literal:
        for option in arguments:
            stands = option.name if isinstance(option, Enum) else option
            if type(stands) is type(value) and stands == value:
                return option
    elif is_dataclass_type(annotation):
        if isinstance(value, dict):
            return build(
                annotation,
                value,
                lambda inner, item, path, _: from_json(inner, item, path, exact=exact),
                prefix=f"{name}.",
            )
    elif is_path_type(annotation):
        if isinstance(value, str):
            return annotation(value)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        return _enum_from_json(annotation, value, name, exact=exact)
    elif annotation is Any or annotation is object:
        return value
    elif container is dict:
        if isinstance(value, dict):
            key, item = arguments or (str, Any)
            return {
                _key_from_text(key, text, name): from_json(item, inner, f"{name}[{text!r}]", exact=exact)
                for text, inner in value.items()
            }
    elif container in (list, tuple):
        if isinstance(value, list):
            elements = _elements(container, arguments, value, annotation, name)
            return container(
                from_json(element, item, f"{name}[{i}]", exact=exact) for i, (element, item) in enumerate(elements)
            )
    elif _is_scalar(annotation, name):
        return _scalar(annotation, value, name, exact=exact)
    raise _mismatch(annotation, value, name)


def attempt(annotation: Any, value: Any, name: str, *, exact: bool = False) -> Any:
    """Return the result of :func:`from_json`, or its error."""
    try:
        return from_json(annotation, value, name, exact=exact)
    except HyperparameterError as refusal:
        return refusal


def build(
    cls: type,
    given: Mapping[str, Any],
    decode: Callable[[Any, Any, str, Any], Any],
    *,
    prefix: str = "",
    base: Any = None,
    problems: Sequence[str] = (),
) -> Any:
    """Build a dataclass from values for some of its fields; raise HyperparameterError with all problems at once.

    ``decode`` converts a field's value; it gets the annotation, the value, the field's full name, and the current
    value. Other fields take their values from ``base``, if any, or their defaults. ``problems`` were found before.
    """
    fields = fields_of(cls)
    found = [*problems, *(unknown(cls, key) for key in given if key not in fields)]
    values = {name: field.default if base is None else getattr(base, name) for name, field in fields.items()}
    for name, field in fields.items():
        if name in given:
            try:
                values[name] = decode(field.annotation, given[name], prefix + name, values[name])
            except HyperparameterError as problem:
                found.append(str(problem).removesuffix("."))
        elif values[name] is MISSING:
            found.append(f"missing {prefix}{name}")
    if found:
        listed = ", ".join(str(field) for field in fields.values()) or "none"
        raise HyperparameterError(f"{cls.__name__}: {'; '.join(found)}. Its fields are: {listed}.")
    try:
        return cls(**values)
    except (TypeError, ValueError) as refusal:
        raise HyperparameterError(f"{cls.__name__} refuses its values: {refusal}") from refusal


def same_json(one: Any, other: Any) -> bool:
    """Return whether two values have the same JSON text: nan equals nan, and 1 equals neither 1.0 nor true."""
    return json.dumps(one) == json.dumps(other)


def _union_to_json(annotation: Any, value: Any, name: str, *, exact: bool) -> Any:
    fits = False
    for strictness in (True,) if exact else (True, False):
        for member in members(annotation):
            try:
                encoded = to_json(member, value, name, exact=strictness)
            except HyperparameterError:
                continue
            fits = True
            back, expected = from_json(annotation, encoded, name), from_json(member, encoded, name)
            if type(back) is type(expected) and same_json(to_json(member, back, name), encoded):
                return encoded
    if not fits:
        raise _mismatch(annotation, value, name)
    raise HyperparameterError(
        f"{name}: {show(value)} would come back as another type of {describe(annotation)}, since both look alike as "
        "JSON; use types that can be told apart."
    )


def _union_from_json(annotation: Any, value: Any, name: str, *, exact: bool) -> Any:
    nested = nested_dataclass(annotation)
    if nested is not None and isinstance(value, dict) and not _takes_dict(annotation):
        return from_json(nested, value, name, exact=exact)  # its error names the wrong field
    for strictness in (True,) if exact else (True, False):
        for member in members(annotation):
            outcome = attempt(member, value, name, exact=strictness)
            if not isinstance(outcome, HyperparameterError):
                return outcome
    raise _mismatch(annotation, value, name)


def _takes_dict(annotation: Any) -> bool:
    return any((get_origin(member) or member) in (dict, Any, object) for member in members(annotation))


def _enum_from_json(annotation: type[Enum], value: Any, name: str, *, exact: bool) -> Enum:
    if isinstance(value, str) and value in annotation.__members__:
        return annotation[value]
    for member in () if exact else annotation:
        if type(member.value) is type(value) and member.value == value:
            return member
    names = ", ".join(annotation.__members__)
    raise HyperparameterError(f"{name}: expected {annotation.__name__} ({names}), found {show(value)}.")


def _dict_to_json(arguments: tuple[Any, ...], value: dict[Any, Any], name: str, *, exact: bool) -> dict[str, Any]:
    key_type, item_type = arguments or (str, Any)
    encoded = {}
    for key, item in value.items():
        stands = to_json(key_type, key, f"key of {name}", exact=exact)
        text = stands if isinstance(stands, str) else json.dumps(stands)
        if not same_json(to_json(key_type, _key_from_text(key_type, text, name), name), stands) or text in encoded:
            raise HyperparameterError(f"{name}: the key {show(key)} would not come back as {describe(key_type)}.")
        encoded[text] = to_json(item_type, item, f"{name}[{text!r}]", exact=exact)
    return encoded


def _key_from_text(annotation: Any, text: str, name: str) -> Any:
    try:
        return from_json(annotation, text, f"key of {name}")
    except HyperparameterError:
        try:
            return from_json(annotation, json.loads(text), f"key of {name}")
        except ValueError:  # not JSON, or not of the type (HyperparameterError is a ValueError)
            raise _mismatch(annotation, text, f"key of {name}") from None


def _elements(
    container: type, arguments: tuple[Any, ...], values: Any, annotation: Any, name: str
) -> list[tuple[Any, Any]]:
    if container is list or (container is tuple and not arguments) or arguments[1:] == (Ellipsis,):
        return [(arguments[0] if arguments else Any, value) for value in values]
    if len(arguments) != len(values):
        raise _mismatch(annotation, values, name)
    return list(zip(arguments, values, strict=True))


def _is_scalar(annotation: Any, name: str) -> bool:
    if annotation in (bool, int, float, str, None, types.NoneType):
        return True
    raise HyperparameterError(f"{name} has the type {describe(annotation)}; hyperparameters can be {SUPPORTED}.")


def _scalar(annotation: Any, value: Any, name: str, *, exact: bool) -> Any:
    if annotation is float and isinstance(value, float):
        return float(value)
    if annotation is float and type(value) is int and not exact:
        try:
            return float(value)
        except OverflowError:
            raise _mismatch(annotation, value, name) from None
    if type(value) is (types.NoneType if annotation is None else annotation):
        return value
    raise _mismatch(annotation, value, name)


def _is_plain(value: Any) -> bool:
    if type(value) is list:
        return all(_is_plain(item) for item in value)
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _mismatch(annotation: Any, value: Any, name: str) -> HyperparameterError:
    return HyperparameterError(
        f"{name}: expected {describe(annotation)}, found {show(value)} ({type(value).__name__})."
    )
