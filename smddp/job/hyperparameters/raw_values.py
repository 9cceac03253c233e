"""One field's value from what arrived for it: text, JSON data, or the words of a command line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from smddp.errors import HyperparameterError
from smddp.job.hyperparameters.json_values import attempt, from_json
from smddp.job.hyperparameters.schema import describe, members

TEXT_KEY = "__text__"
"""The key of an object that stands for a str which would be misread if it travelled bare."""

_PYTHON_WORDS = {"True": True, "False": False, "None": None}


class Words(list[str]):
    """What follows an option on a command line."""


class Verbatim(str):
    """A text that is the value itself, whatever it looks like."""

    __slots__ = ()


def from_raw(annotation: Any, given: Any, name: str) -> Any:
    """The value of a field.

    Args:
        annotation: The field's type.
        given: A text, which is JSON if the type takes it so and else the value itself; :class:`Verbatim` text;
            :class:`Words`, of which several are the elements of a list; anything else is JSON data.
        name: The field's full name, for errors.

    Raises:
        HyperparameterError: It does not fit the type.
    """
    if isinstance(given, Words):
        return _from_words(annotation, given, name)
    if isinstance(given, Verbatim):
        return from_json(annotation, str(given), name)
    return _first_that_fits(annotation, _interpretations(given) if isinstance(given, str) else _unwrapped(given), name)


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
    """The list or tuple that an annotation may be, with the types of that many elements."""
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
    """What a text may mean: JSON, the text itself, or what Python writes so (``True``, ``.5``, ``nan``)."""
    interpretations: list[Any] = []
    with contextlib.suppress(ValueError, RecursionError):
        interpretations += _unwrapped(json.loads(text))
    interpretations.append(text)
    if text in _PYTHON_WORDS:
        interpretations.append(_PYTHON_WORDS[text])
    with contextlib.suppress(ValueError):
        interpretations.append(float(text))
    return interpretations


def _unwrapped(value: Any) -> list[Any]:
    if isinstance(value, dict) and value.keys() == {TEXT_KEY} and isinstance(value[TEXT_KEY], str):
        return [value[TEXT_KEY], value]
    return [value]
