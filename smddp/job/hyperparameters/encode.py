"""From a dataclass to hyperparameters that both SDKs carry without loss."""

from __future__ import annotations

import json
from typing import Any

from smddp.errors import HyperparameterError
from smddp.job.hyperparameters.raw_values import TEXT_KEY, from_raw
from smddp.job.hyperparameters.schema import Field, fields_of, show
from smddp.job.hyperparameters.typed_values import same_json, to_json


def encode(config: Any) -> dict[str, Any]:
    """Return the hyperparameters of a dataclass, for ``PyTorch(hyperparameters=...)`` or V3's ``ModelTrainer``.

    V2 turns each value into JSON; V3 does so with all but a str, which it sends as it is. A str that would then be
    taken for something else, such as "5" where an int may stand as well, goes as ``{"__text__": "5"}``.

    Args:
        config: An instance of a dataclass.

    Returns:
        JSON-able values, by field. An Enum is its name, a Path its text, a nested dataclass a dict.

    Raises:
        HyperparameterError: A value is not of its field's type, or of a type that can't be sent.

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
    """Return the same as CreateTrainingJob takes them: each value as JSON text, as V2 sends it.

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
    """Return the value, in a form that comes back as itself whichever SDK carries it."""
    forms = (value, {TEXT_KEY: value}) if isinstance(value, str) else (value,)
    for form in forms:
        texts = {json.dumps(form), form if isinstance(form, str) else json.dumps(form)}
        if all(same_json(_again(field, text), value) for text in texts):
            return form
    raise HyperparameterError(f"{field.name}: {show(value)} can't be told from a str of the same look; rename its key.")


def _again(field: Field, text: str) -> Any:
    return to_json(field.annotation, from_raw(field.annotation, text, field.name), field.name)
