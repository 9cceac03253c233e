"""The request's channels, from the inputs of ``fit``: URIs, and V3's ``TrainingInput`` and ``FileSystemInput``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagemaker.core.inputs import FileSystemInput, TrainingInput

_CODE = "code"
_EXPECTED = "str, dict, TrainingInput or FileSystemInput"
_MODEL_TYPE = "application/x-sagemaker-model"


def input_data_config(
    inputs: Any, *, model_uri: str | None, model_channel: str, code_uri: str | None
) -> list[dict[str, Any]] | None:
    """Return all channels in the request's form, with those of the model and of the code, or None if there are none.

    Raise ValueError if a channel has another type, is not on S3, or uses a name twice.
    """
    places = inputs if isinstance(inputs, Mapping) else {} if inputs is None else {"training": inputs}
    named = {name: _channel(place) for name, place in places.items()}
    model: dict[str, str] = {"content_type": _MODEL_TYPE, "input_mode": "File"}
    for name, uri, options in ((model_channel, model_uri, model), (_CODE, code_uri, {})):
        if not uri:
            continue
        if not name:
            raise ValueError(f"Expected a channel name if a channel URI {uri} is specified")
        if name in named:
            raise ValueError(f"Duplicate channel {name} not allowed.")
        named[name] = _channel(uri, **options)
    if inputs is None and not named:
        return None
    return [{**channel, "ChannelName": name} for name, channel in named.items()]


def input_mode(inputs: Any, default: str) -> str:
    """Return the mode of channels that set none: that of a single ``TrainingInput`` if it has one, or `default`."""
    mode: str = inputs.config.get("InputMode", default) if isinstance(inputs, TrainingInput) else default
    return mode


def _channel(place: Any, **options: str) -> dict[str, Any]:
    if isinstance(place, TrainingInput | FileSystemInput):
        config: Mapping[str, Any] = place.config
        return dict(config)
    if not isinstance(place, str):
        raise ValueError(f"Cannot format input {place}. Expecting one of {_EXPECTED}")
    if not place.startswith("s3://"):
        raise ValueError(f'URI input {place} must be a valid S3 URI: must start with "s3://"')
    return dict(TrainingInput(place, **options).config)
