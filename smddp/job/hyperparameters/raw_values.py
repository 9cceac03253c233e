"""One field's value from what arrived for it: text, JSON data, or the words of a command line.

Whoever submits a job spells values their own way: as JSON (V2), as ``str(value)`` (Boto3), as JSON of a str (V2's
tuner: ``"32"`` with its quotes for the category 32), as a word (the console: ``yes``). The field's type says which
reading is meant. That holds for a whole value; what lies within a list or an object has the type that JSON gave it.
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
"""The key of an object that stands for a str which would be misread if it travelled bare."""

_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_BRACKETS = ("[", "(", "{")


class Words(list[str]):
    """What follows an option on a command line."""


class Verbatim(str):
    """A text that is the value itself, whatever it looks like, if the type takes a str at all."""

    __slots__ = ()


def from_raw(annotation: Any, given: Any, name: str) -> Any:
    """Return the value of a field.

    Args:
        annotation: The field's type.
        given: A text, which is JSON if the type takes it so, else the value itself, else the value in another
            spelling (``True``, ``.5``, ``yes``, ``(1, 2)``, ``"5"``); :class:`Verbatim` text; :class:`Words`, of which
            several are the elements of a list; anything else is JSON data.
        name: The field's full name, for errors.

    Raises:
        HyperparameterError: It does not fit the type.
    """
    if isinstance(given, Words):
        return _from_words(annotation, given, name)
    if isinstance(given, Verbatim):
        return _first_that_fits(annotation, [str(given), *_interpretations(str(given))], name)
    if not isinstance(given, str):
        return _first_that_fits(annotation, _unwrapped(given), name)
    if annotation in (Any, object) and given in _PYTHON_WORDS:
        return given  # no type says that it is no str; the toolkits take it for one
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
    """Return the list or tuple that an annotation may be, with the types of that many elements."""
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
    """Return what a text may mean, the likeliest first."""
    parsed: list[Any] = []
    with contextlib.suppress(ValueError, RecursionError):
        parsed = _unwrapped(json.loads(text))
    if text in _PYTHON_WORDS:
        parsed.append(_PYTHON_WORDS[text])
    quoted = [inner for inner in parsed if isinstance(inner, str)]
    return [*parsed, text, *_spellings(text), *(each for inner in quoted for each in _interpretations(inner))]


def _spellings(text: str) -> Iterator[Any]:
    """Yield what a text means that is no JSON: numbers and brackets as Python writes them, and the words for a bool."""
    for number in (int, float):
        with contextlib.suppress(ValueError):
            yield number(text)
    if text.lower() in _FLAGS:
        yield _FLAGS[text.lower()]
    if text.startswith(_BRACKETS):
        with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            yield json.loads(json.dumps(ast.literal_eval(text)))  # tuples are lists in JSON, and keys are text


def _unwrapped(value: Any) -> list[Any]:
    if isinstance(value, dict) and value.keys() == {TEXT_KEY} and isinstance(value[TEXT_KEY], str):
        return [value[TEXT_KEY], value]
    return [value]
