"""A host's own Python environment without an image: packages that its program installs stay out of this Python.

The SDK's FrameworkProcessor installs a requirements.txt with the first ``pip`` in PATH. Without an image, that would be
the ``pip`` of the user who started the platform.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from estimators.local.executors import inherited_environment
from smddp.container.requirements import activated, make_environment

_DIRECTORY = "venv"
_PIP = '#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n'


def make_python_environment(root: Path) -> None:
    """Make a virtual environment in a host's tree that sees all packages of this Python."""
    programs = make_environment(root / _DIRECTORY).parent
    for name in ("pip", "pip3"):
        program = programs / name
        program.write_text(_PIP)
        program.chmod(0o755)


def in_python_environment(ml_root: PurePath) -> dict[str, str]:
    """Return the variables by which a program that sees the tree at ``ml_root`` finds its environment first."""
    return {"PATH": activated(inherited_environment(hosts=1), str(ml_root / _DIRECTORY / "bin" / "python"))["PATH"]}
