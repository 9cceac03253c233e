"""Hyperparameters that are too large for a request, and so travel as a file in the bundle of the code.

In their place the request has one of ours, which holds the SHA-256 of the file: what is read here is what was sent. It
begins with ``sagemaker_``, so that AWS's toolkit does not hand it to the script.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smddp.errors import HyperparameterError

POINTER = "sagemaker_smddp_hyperparameters"
"""The hyperparameter that holds the SHA-256 of the file, in hexadecimal digits."""
BUNDLED_FILE = "smddp-hyperparameters.json"
"""The file's name in the bundle: a JSON object of the texts that the request would have had."""

MOST_BYTES = 100_000
"""Bytes of all hyperparameters, as JSON, that can certainly be variables: Linux takes 128 KiB in one (execve(2)), and
SM_TRAINING_ENV holds them all, with much else."""


def bundle_file(texts: Mapping[str, str]) -> tuple[bytes, str]:
    """Return the file's content, and its SHA-256 in hexadecimal digits.

    Args:
        texts: The hyperparameters as a request holds them.
    """
    content = json.dumps(dict(texts), sort_keys=True, indent=1).encode()
    return content, hashlib.sha256(content).hexdigest()


def with_bundled(given: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return a job's hyperparameters with those of the bundle; where both have one, the request's counts.

    Args:
        given: The request's.
        base: /opt/ml, or what stands for it: the bundle is in its directory ``code``.

    Raises:
        HyperparameterError: The file is not there, or is not the one that was sent.
    """
    if POINTER not in given:
        return dict(given)
    rest = {name: value for name, value in given.items() if name != POINTER}
    return {**read_bundled(given[POINTER], base), **rest}


def read_bundled(pointer: object, base: Path) -> dict[str, str]:
    """Return the hyperparameters of the bundle, as text.

    Args:
        pointer: The value of `POINTER`.
        base: As for `with_bundled`.

    Raises:
        HyperparameterError: The file is not there, or is not the one that was sent.
    """
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
