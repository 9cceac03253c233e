"""Encodes a dataclass as hyperparameters that both SDKs send without loss."""

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
    forms = (value, {TEXT_KEY: value}) if isinstance(value, str) else (value,)
    for form in forms:
        texts = {json.dumps(form), form if isinstance(form, str) else json.dumps(form)}
        if all(same_json(_again(field, text), value) for text in texts):
            return form
    raise HyperparameterError(f"{field.name}: {show(value)} can't be told from a str of the same look; rename its key.")


def _again(field: Field, text: str) -> Any:
    return to_json(field.annotation, from_raw(field.annotation, text, field.name), field.name)
