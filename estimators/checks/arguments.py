"""The arguments of an Estimator as its caller gives them: of the right kind, and as parameters of ``PyTorch``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any

from estimators.errors import EstimatorError, nearest
from smddp.display_text import describe


def check_names(names: Mapping[str, Any]) -> None:
    """Raise EstimatorError for names that are no parameters of ``PyTorch``; without names, the SDK is not loaded."""
    if not names:
        return
    from estimators.sdk.adapter import adapter

    known = adapter().parameter_names()
    if unknown := sorted(set(names) - known):
        raise EstimatorError(" ".join(f"{name!r} is no parameter. {nearest(name, known)}" for name in unknown))


def check_session(session: object) -> None:
    """Raise EstimatorError for anything but a session of the SDK, which has its configuration."""
    if session is None or hasattr(session, "sagemaker_config"):
        return
    kind = type(session)
    remedy = "Give its .session" if hasattr(kind, "session") else "Give a sagemaker.Session"
    raise EstimatorError(f"sagemaker_session is {describe(session)}, and no session of the SageMaker SDK. {remedy}.")


def as_hyperparameters(hyperparameters: Any) -> dict[str, Any] | None:
    """Return the hyperparameters for the SDK to encode as JSON; a dict is unchanged, as with ``PyTorch``.

    Raise EstimatorError for anything but a dict or an instance of a dataclass.
    """
    if hyperparameters is None:
        return None
    if isinstance(hyperparameters, Mapping):
        return dict(hyperparameters)
    from smddp.errors import HyperparameterError
    from smddp.job.hyperparameters import encode

    if not is_dataclass(hyperparameters) or isinstance(hyperparameters, type):
        raise EstimatorError(
            f"hyperparameters is {hyperparameters!r:.100}, of type {type(hyperparameters).__name__}. Give a dict, or "
            "an instance of the script's dataclass."
        )
    try:
        return encode(hyperparameters)
    except HyperparameterError as fault:
        raise EstimatorError(f"hyperparameters: {fault}") from fault


def as_path(name: str, path: object) -> str | None:
    """Return a path as text; raise EstimatorError for anything else, or an empty text."""
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike) or not (text := os.fspath(path)):
        raise EstimatorError(f"{name} has {path!r}, which is no path. Give a text that is not empty, or a Path.")
    return text


def as_paths(name: str, paths: object) -> list[str | None] | None:
    """Return a list of paths as texts, or None for an empty one; raise EstimatorError for anything else."""
    if paths is None:
        return None
    if isinstance(paths, str | os.PathLike):
        raise EstimatorError(f"{name} is one path, {os.fspath(paths)!r}. Give a list of paths.")
    if not isinstance(paths, Iterable):
        raise EstimatorError(f"{name} is {paths!r}. Give a list of paths.")
    return [as_path(name, path) for path in paths] or None
