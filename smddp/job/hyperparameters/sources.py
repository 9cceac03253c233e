"""Chooses the source of a script's hyperparameters: the job's file, SM_HPS, or the command line."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from smddp.cluster import without_run_variables
from smddp.errors import HyperparameterError
from smddp.job.hyperparameters.bundled import with_bundled
from smddp.job.hyperparameters.command_line import from_arguments
from smddp.job.hyperparameters.decode import decode
from smddp.job.hyperparameters.raw_values import Verbatim

logger = logging.getLogger(__name__)

T = TypeVar("T")


def from_json_file(cls: type[T], path: str | Path) -> T:
    """Make a dataclass from hyperparameters.json and its bundled file; raise HyperparameterError if they don't fit."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HyperparameterError(f"The hyperparameters can't be read: {error}.") from error
    base = Path(path).absolute().parent.parent.parent  # of input/config/hyperparameters.json
    return decode(cls, with_bundled(_object(text, str(path)), base))


def from_sm_hps(cls: type[T], text: str) -> T:
    """Make a dataclass from SM_HPS, whose values are JSON data; raise HyperparameterError if it does not fit.

    V3 loses there which of its values were a str ("5" is 5), so a number is refused for a str field.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Config:
        ...     optimizer: str
        >>> from_sm_hps(Config, '{"optimizer": "adam"}')
        Config(optimizer='adam')
    """
    data = _object(text, "SM_HPS")
    return decode(cls, {key: Verbatim(value) if isinstance(value, str) else value for key, value in data.items()})


def load(
    cls: type[T],
    environ: Mapping[str, str] | None = None,
    argv: Sequence[str] | None = None,
    hyperparameters_path: str | Path | None = None,
) -> T:
    """Make a dataclass from the script's hyperparameters; raise HyperparameterError if they do not fit.

    The job's hyperparameters.json has priority (in a job the command line is lossy), then SM_HPS, then the command
    line. ``environ`` and ``argv`` default to this process's own, ``hyperparameters_path`` to
    input/config/hyperparameters.json under SAGEMAKER_BASE_DIR, or /opt/ml if that is unset.
    """
    environ = without_run_variables(os.environ if environ is None else environ)
    base = environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"
    path = Path(hyperparameters_path or Path(base) / "input" / "config" / "hyperparameters.json")
    if path.exists():
        logger.info("Hyperparameters come from %s.", path)
        return from_json_file(cls, path)
    if environ.get("SM_HPS"):
        logger.info("Hyperparameters come from SM_HPS.")
        return from_sm_hps(cls, environ["SM_HPS"])
    return from_arguments(cls, sys.argv[1:] if argv is None else argv)


def _object(text: str, source: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise HyperparameterError(f"{source} is not JSON: {error}.") from error
    if not isinstance(data, dict):
        raise HyperparameterError(f"{source} must hold a JSON object of hyperparameters, not {type(data).__name__}.")
    return data
