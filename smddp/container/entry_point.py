"""The rules for entry points under each launcher, for the container and for a plan before it is sent.

The rule for names is the toolkit's (sagemaker-training 5.1.4, ``process.validate_entry_point``).
"""

from __future__ import annotations

import re
from collections.abc import Container

_NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*")
_SETUP = "setup.py"


def fault_of_name(entry_point: str) -> str | None:
    """Return what is wrong with an entry point's path in the source bundle, and what is allowed; None if valid."""
    segments = entry_point.split("/")
    if _NAME.fullmatch(entry_point) and "." not in segments and ".." not in segments:
        return None
    return (
        f"The entry point {entry_point!r} must be a path inside the source directory, such as train.py or "
        "bin/train.sh: letters, digits and . _ + - / only, not absolute, no leading dash, no . or .. in it."
    )


def is_package(entry_point: str, files: Container[str]) -> bool:
    """Return whether the code is a Python package, which is installed, and runs as a module.

    ``files`` are the names at the top of the bundle. A package's entry point may be a module's name, without ``.py``.
    """
    return _SETUP in files and not entry_point.endswith(".sh")


def fault_under_torchrun(entry_point: str, *, package: bool) -> str | None:
    """Return why torchrun can't start an entry point in its ranks; None if it can.

    The other launchers start any entry point, in AWS's toolkit and in this container.
    """
    if not package and entry_point.endswith(".py"):
        return None
    kind = f"part of a Python package (there is a {_SETUP})" if package else "no Python file"
    return f"torchrun starts one Python file in every rank, but {entry_point} is {kind}."
