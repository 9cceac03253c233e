"""Reads one field's value from text, JSON data, or the words of a command line.

Submitters spell values differently: as JSON (V2), as ``str(value)`` (Boto3), as JSON of a str (V2's tuner: ``"32"``
with its quotes for the category 32), as a word (the console: ``yes``). The field's type decides. That holds for a whole
value; inside a list or an object, JSON decides the type.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_origin

from smddp.errors import HyperparameterError
from smddp.job.hyperparameters.schema import describe, members
from smddp.job.hyperparameters.typed_values import attempt

TEXT_KEY = "__text__"
"""The key of an object that stands for a str that would be misread on its own."""

_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_BRACKETS = ("[", "(", "{")


class Words(list[str]):
    """The words after an option on a command line."""


class Verbatim(str):
    """A text that is the value itself, if the type allows a str at all."""

    __slots__ = ()


def from_raw(annotation: Any, given: Any, name: str) -> Any:
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
            return from_raw(annotation, words[0], name)
        except HyperparameterError:
            if sequence is None:
                raise
    if sequence is None:
        raise HyperparameterError(f"{name}: expected {describe(annotation)}, found {len(words)}: {' '.join(words)}.")
    container, elements = sequence
    return container(from_raw(element, word, name) for element, word in zip(elements, words, strict=True))


def _sequence(annotation: Any, length: int) -> tuple[type, list[Any]] | None:
    """Return list or tuple, whichever the annotation allows, with the types of that many elements; None if neither."""
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
            yield json.loads(json.dumps(ast.literal_eval(text)))  # tuples become lists, and keys become text


def _unwrapped(value: Any) -> list[Any]:
    if isinstance(value, dict) and value.keys() == {TEXT_KEY} and isinstance(value[TEXT_KEY], str):
        return [value[TEXT_KEY], value]
    return [value]
