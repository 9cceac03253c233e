"""Converts a dataclass to hyperparameters, which both SDKs send without loss, and back.

Submitters spell values differently: as JSON (V2), as ``str(value)`` (Boto3), as JSON of a str (V2's tuner: ``"32"``
with its quotes for the category 32), as a word (the console: ``yes``). The field's type decides. That holds for a whole
value; inside a list or an object, JSON decides the type.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from smddp.errors import HyperparameterError
from smddp.job.hyperparameters.schema import (
    Field,
    describe,
    fields_of,
    members,
    nested_dataclass,
    resolve,
    show,
    unknown,
)
from smddp.job.hyperparameters.typed_values import attempt, build, same_json, to_json
from smddp.python_syntax import call_parser

T = TypeVar("T")

_PLATFORM_PREFIX = "sagemaker_"
_PLATFORM_NAMES = frozenset({"mp_parameters", "_tuning_objective_metric", "default_user_module_name"})

_TEXT_KEY = "__text__"
"""The key of an object that stands for a str that would be misread on its own."""

_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_BRACKETS = ("[", "(", "{")


def encode(config: Any) -> dict[str, Any]:
    """Return the hyperparameters of a dataclass, for ``PyTorch(hyperparameters=...)`` or V3's ``ModelTrainer``.

    V2 turns each value into JSON; V3 does so with all but a str, which it sends as it is. A str that would then be
    misread, such as "5" for a field that may also be an int, becomes ``{"__text__": "5"}``. An Enum becomes its name, a
    Path its text, a nested dataclass a dict. Raise HyperparameterError if a value does not have its field's type, or
    can't be sent.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Config:
        ...     lr: float = 0.1
        ...     sizes: tuple[int, ...] = (32, 16)
        >>> encode(Config())
        {'lr': 0.1, 'sizes': [32, 16]}
    """
    return {
        name: _safe(field, to_json(field.annotation, getattr(config, name), name))
        for name, field in fields_of(type(config)).items()
    }


def to_strings(config: Any) -> dict[str, str]:
    """Return the hyperparameters for CreateTrainingJob: each value as JSON text, as V2 sends it.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Config:
        ...     optimizer: str = "adam"
        >>> to_strings(Config())
        {'optimizer': '"adam"'}
    """
    return {name: json.dumps(value) for name, value in encode(config).items()}


def _safe(field: Field, value: Any) -> Any:
    """Return the value in a form that both SDKs send without loss."""
    forms = (value, {_TEXT_KEY: value}) if isinstance(value, str) else (value,)
    for form in forms:
        texts = {json.dumps(form), form if isinstance(form, str) else json.dumps(form)}
        if all(same_json(_again(field, text), value) for text in texts):
            return form
    raise HyperparameterError(f"{field.name}: {show(value)} can't be told from a str of the same look; rename its key.")


def _again(field: Field, text: str) -> Any:
    return to_json(field.annotation, _from_raw(field.annotation, text, field.name), field.name)


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
    return {key: _from_raw(Any, value, key) for key, value in raw.items() if not _is_platforms(key)}


def assemble(cls: type[T], given: Mapping[str, Any], problems: Sequence[str] = ()) -> T:
    """Make a dataclass from values by dotted name; raise one HyperparameterError for ``problems`` and new problems.

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
        return _from_raw(annotation, given, name)
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


class Words(list[str]):
    """The words after an option on a command line."""


class Verbatim(str):
    """A text that is the value itself, if the type allows a str at all."""

    __slots__ = ()


def _from_raw(annotation: Any, given: Any, name: str) -> Any:
    """Return the value of a field; raise HyperparameterError, with the field's full ``name``, if it does not fit.

    1. A text is JSON if it then fits the type; otherwise the value itself; otherwise the value in another spelling
       (``True``, ``.5``, ``yes``, ``(1, 2)``, ``"5"``). A :class:`Verbatim` is the value itself first.
    2. Several :class:`Words` are the elements of a list.
    3. Everything else is JSON data.
    """
    if isinstance(given, Words):
        return _from_words(annotation, given, name)
    if isinstance(given, Verbatim):
        return _first_that_fits(annotation, [str(given), *_interpretations(str(given))], name)
    if not isinstance(given, str):
        return _first_that_fits(annotation, _unwrapped(given), name)
    if annotation in (Any, object) and given in _PYTHON_WORDS:
        return given  # without a type it stays a str, as in the toolkits
    return _first_that_fits(annotation, _interpretations(given), name)


def _from_words(annotation: Any, words: Words, name: str) -> Any:
    if not words:
        raise HyperparameterError(f"{name} needs a value: {describe(annotation)}.")
    sequence = _sequence(annotation, len(words))
    if len(words) == 1:
        try:
            return _from_raw(annotation, words[0], name)
        except HyperparameterError:
            if sequence is None:
                raise
    if sequence is None:
        raise HyperparameterError(f"{name}: expected {describe(annotation)}, found {len(words)}: {' '.join(words)}.")
    container, elements = sequence
    return container(_from_raw(element, word, name) for element, word in zip(elements, words, strict=True))


def _sequence(annotation: Any, length: int) -> tuple[type, list[Any]] | None:
    """Return list or tuple, as the annotation allows, and the types of `length` elements; None if neither."""
    for member in members(annotation):
        container, arguments = get_origin(member) or member, get_args(member)
        if container is list or (container is tuple and (not arguments or arguments[1:] == (Ellipsis,))):
            return container, [arguments[0] if arguments else Any] * length
        if container is tuple and len(arguments) == length:
            return container, list(arguments)
    return None


def _first_that_fits(annotation: Any, candidates: Sequence[Any], name: str) -> Any:
    outcomes = [attempt(annotation, candidate, name) for candidate in candidates]
    fitting = (outcome for outcome in outcomes if not isinstance(outcome, HyperparameterError))
    try:
        return next(fitting)
    except StopIteration:
        raise outcomes[0] from None


def _interpretations(text: str) -> list[Any]:
    """Return the possible values of a text, the likeliest first."""
    parsed: list[Any] = []
    with contextlib.suppress(ValueError, RecursionError):
        parsed = _unwrapped(json.loads(text))
    if text in _PYTHON_WORDS:
        parsed.append(_PYTHON_WORDS[text])
    quoted = [inner for inner in parsed if isinstance(inner, str)]
    return [*parsed, text, *_spellings(text), *(each for inner in quoted for each in _interpretations(inner))]


def _spellings(text: str) -> Iterator[Any]:
    """Yield the values of a text that is not JSON: Python's numbers and brackets, and the words for a bool."""
    for number in (int, float):
        with contextlib.suppress(ValueError):
            yield number(text)
    if text.lower() in _FLAGS:
        yield _FLAGS[text.lower()]
    if text.startswith(_BRACKETS):
        with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            value = call_parser(ast.literal_eval, text)
            yield json.loads(json.dumps(value))  # tuples become lists, and keys become text


def _unwrapped(value: Any) -> list[Any]:
    if isinstance(value, dict) and value.keys() == {_TEXT_KEY} and isinstance(value[_TEXT_KEY], str):
        return [value[_TEXT_KEY], value]
    return [value]
