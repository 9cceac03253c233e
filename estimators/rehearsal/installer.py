"""Make a virtual environment without this Python's packages: by uv if it is here, else by venv and pip."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from estimators.errors import EstimatorError
from smddp.container.requirements import cause
from smddp.display_text import as_size

_CAUSES = (
    (
        r"No space left on device|Disk quota exceeded",
        "The disk is full: {free} are free in {place}. An environment takes 7 GB with PyTorch for CUDA, 1 GB with that "
        "for CPUs; XDG_CACHE_HOME names another place.",
    ),
    (
        r"dns error|[Nn]ame resolution|[Nn]etwork is unreachable|[Cc]onnection refused|tcp connect error|"
        r"NewConnectionError|ConnectTimeout|operation timed out|ProxyError",
        "No package index answers. {index}; a rehearsal that is not isolated needs none.",
    ),
    (
        r"No solution found|No matching distribution|ResolutionImpossible|was not found in the package registry",
        "The package index has no such versions for Python {version}. {index}; or choose another framework_version.",
    ),
    (
        r"No module named '?pip",
        "This Python has neither pip nor uv: install one of them.",
    ),
)
_INDEX_OF_UV = "uv reads UV_DEFAULT_INDEX, UV_FIND_LINKS and uv.toml, not pip's settings"
_INDEX_OF_PIP = "pip reads PIP_INDEX_URL, PIP_FIND_LINKS and pip.conf"


def python_of(directory: Path) -> Path:
    """Return the path of an environment's Python."""
    return directory / "bin" / "python"


def packages_of(directory: Path) -> Path:
    """Return the directory of an environment's packages."""
    return next(directory.glob("lib/python3*/site-packages"))


def find_python(version: str) -> str | None:
    """Return the path of a Python of a major and minor version, this one if it fits; None if there is none here."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    finders = [["uv", "python", "find", "--no-python-downloads", version]] if (uv := _uv()) else []
    finders += [[f"python{version}", "-c", "import sys; print(sys.executable)"]]
    for program, *arguments in finders:
        if path := uv if program == "uv" else shutil.which(program):
            found = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
            if found.returncode == 0:
                return found.stdout.strip()
    return None  # a shim of pyenv may exist and run nothing


def install(directory: Path, python: str, requirements: Sequence[str], *, keep: int) -> None:
    """Make an environment of a Python with requirements in a new directory.

    The programs inherit the descriptor `keep`, so that a lock lasts until they have ended, even if this process is
    killed. Raise EstimatorError with the reason and a remedy if one of them fails.
    """
    uv, target = _uv(), str(python_of(directory))
    if uv is not None:
        commands = [
            [uv, "venv", "--quiet", "--no-project", "--python", python, str(directory)],
            [uv, "pip", "install", "--python", target, *requirements],
        ]
    else:
        pip = [sys.executable, "-m", "pip", "--python", target, "install"]
        commands = [
            [python, "-m", "venv", "--without-pip", str(directory)],
            [*pip, "--disable-pip-version-check", "--no-input", "--progress-bar=off", *requirements],
        ]
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    for command in commands:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            pass_fds=[keep],
            env=environ,
        )
        if done.returncode != 0:
            index = _INDEX_OF_PIP if uv is None else _INDEX_OF_UV
            raise EstimatorError(_explain(done.stdout, directory, python, index, code=done.returncode))


def _uv() -> str | None:
    """Return the path of uv, from its package beside this Python or from PATH; None if it is absent."""
    beside_python = str(Path(sys.executable).parent)  # a virtual environment need not be activated
    return shutil.which("uv", path=os.pathsep.join([beside_python, *os.get_exec_path()]))


def _explain(output: str, directory: Path, python: str, index: str, *, code: int) -> str:
    """Return the message of a failed installation, with a remedy if one is known."""
    lines = [f"The environment of an isolated rehearsal can't be made (exit code {code}):", cause(output)]
    for pattern, remedy in _CAUSES:
        if re.search(pattern, output):
            version = subprocess.run([python, "-V"], capture_output=True, text=True, check=False).stdout.split()[-1]
            free = as_size(shutil.disk_usage(directory.parent).free)
            lines.append(remedy.format(free=free, place=directory.parent, index=index, version=version))
            break
    return "\n".join(lines)
