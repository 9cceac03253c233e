"""The names of a checkpoint's files.

``manifest.json`` is in the step's directory. All other files are in a directory beside it, one for each attempt to save
the step. The tensors of a part of the state, for example ``model``, are in ``model.safetensors``, or, written by four
processes, in ``model-00001-of-00004.safetensors`` and so on. Files with other names are foreign.
"""

from __future__ import annotations

import re

MANIFEST_NAME = "manifest.json"
STATE_NAME = "state.json"
DIGESTS_NAME = "digests.json"
TENSORS_SUFFIX = ".safetensors"

_PART = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NUMBER = re.compile(r"-\d{5}-of-\d{5}", re.ASCII)
_ATTEMPT = re.compile(r"[0-9a-f]{12}-\d{4,12}", re.ASCII)


def file_names(part: str, count: int) -> list[str]:
    """Return the names of the tensor files of a part, one for each of `count` writers."""
    if count == 1:
        return [part + TENSORS_SUFFIX]
    return [f"{part}-{number:05}-of-{count:05}{TENSORS_SUFFIX}" for number in range(1, count + 1)]


def part_of(name: str) -> str:
    """Return the part of the state that a tensor file belongs to."""
    stem = name.removesuffix(TENSORS_SUFFIX)
    return stem[: -len("-00001-of-00001")] if _NUMBER.fullmatch(stem[-len("-00001-of-00001") :]) else stem


def is_part_name(name: object) -> bool:
    """Return whether the name is valid for a part: 1 to 64 letters, digits, ``-`` and ``_``.

    It must not end like ``-00001-of-00002``.
    """
    return isinstance(name, str) and _PART.fullmatch(name) is not None and part_of(name) == name


def is_file_name(name: object) -> bool:
    """Return whether the name is valid for a checkpoint's file, other than its manifest."""
    if not isinstance(name, str):
        return False
    return name in (STATE_NAME, DIGESTS_NAME) or (name.endswith(TENSORS_SUFFIX) and is_part_name(part_of(name)))


def is_attempt_name(name: object) -> bool:
    """Return whether the name is valid for an attempt's directory: run id and save count, ``5f3a9c01d2e4-0007``."""
    return isinstance(name, str) and _ATTEMPT.fullmatch(name) is not None
