"""Hyperparameters that are too large for a request, and travel as a file in the code bundle.

The request has one hyperparameter of ours instead, with the SHA-256 of the file, so that a changed file is noticed. Its
name begins with ``sagemaker_``, so that AWS's toolkit does not pass it to the script.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smddp.errors import HyperparameterError

POINTER = "sagemaker_smddp_hyperparameters"
"""The hyperparameter whose value is the file's SHA-256, in hexadecimal digits."""
BUNDLED_FILE = "smddp-hyperparameters.json"
"""The file's name in the bundle: a JSON object of hyperparameters as text, as in a request."""

MOST_BYTES = 100_000
"""Bytes of all hyperparameters, as JSON, that always fit into environment variables: Linux allows 128 KiB for one
(execve(2)), and SM_TRAINING_ENV has them all, with much else."""


def bundle_file(texts: Mapping[str, str]) -> tuple[bytes, str]:
    """Return the content of the file for hyperparameters in text form, and its SHA-256 in hexadecimal digits."""
    content = json.dumps(dict(texts), sort_keys=True, indent=1).encode()
    return content, hashlib.sha256(content).hexdigest()


def with_bundled(given: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return a job's hyperparameters, merged with those of the bundle under ``base``/code; the request's have priority.

    Raise HyperparameterError if the bundled file is missing or changed.
    """
    if POINTER not in given:
        return dict(given)
    rest = {name: value for name, value in given.items() if name != POINTER}
    return {**read_bundled(given[POINTER], base), **rest}


def read_bundled(pointer: object, base: Path) -> dict[str, str]:
    """Return the bundle's hyperparameters, as text; raise HyperparameterError if the file is missing or changed."""
    path = base / "code" / BUNDLED_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise HyperparameterError(
            f"The job's hyperparameters travel in the bundle of its code, and can't be read there: {error}. Send the "
            "job anew, by an Estimator."
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != str(pointer).strip('"'):
        raise HyperparameterError(
            f"{path} is not what was sent with the job: its SHA-256 is {found}, and {POINTER} says {pointer}. Leave "
            "the file as it is, and send the job anew."
        )
    texts: dict[str, str] = json.loads(content)  # the digest says that we wrote it
    return texts
