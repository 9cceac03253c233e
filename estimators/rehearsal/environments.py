"""Environments that stand for images, kept in the user's cache directory: made once, and used by many rehearsals.

An environment's name contains a hash of its content, so a kept one never changes. The newest `MOST` stay. They lack
this Python's packages: uv makes them if it is here, else venv and pip.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from estimators.errors import EstimatorError
from estimators.local.errors import LocalPlatformError
from estimators.local.private_directory import make_private, require_unshared
from estimators.rehearsal.image_content import ImageContent
from estimators.source_code import PACKAGE, package_directory
from smddp.container.requirements import cause
from smddp.display_text import as_size
from smddp.process.heartbeat import Heartbeat
from smddp.process.log_format import start_log

logger = logging.getLogger(__name__)

MOST = 3
"""Most environments that are kept; more only while rehearsals use them."""
MADE = "made"
"""The file that an environment gets last. Its time is the time of the last use."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """An environment that stands for an image."""

    python: str
    """The path of its Python."""
    version: str
    """The major and minor version of its Python, which may not be the image's."""


# 1. `lock` guards the directory: under it alone, environments are made, removed, and taken into use. It is held for one
#    making at most, and released by the kernel if the process and its installer are killed.
# 2. An environment without MADE is not finished: its maker was killed, for the lock is ours.
# 3. A rehearsal holds a shared lock on MADE for as long as it uses the environment. It is taken under the first lock,
#    and asked for exclusively, without waiting, to remove the environment.
@contextmanager
def environment(content: ImageContent) -> Iterator[Environment]:
    """Keep an environment in use during a ``with`` block; make it first if it is absent.

    Raise EstimatorError, with a remedy, if it can't be made, or if other users could change it.
    """
    start_log()  # the making takes minutes, whose lines must be seen; unless the user has set up logging
    directory = _directory()
    python = find_python(content.python)
    version = content.python if python is not None else f"{sys.version_info[0]}.{sys.version_info[1]}"
    if python is None:
        logger.warning(
            "Python %s of the image is not on this machine: Python %s takes its place (uv python install %s brings it)",
            content.python,
            version,
            content.python,
        )
    python = python or sys.executable
    place = directory / f"torch-{content.torch}-python-{version}-{_digest(python, content)}"
    with (directory / "lock").open("w") as lock:
        _await(lock)
        if not (place / MADE).exists():
            _remove_all_but(MOST - 1, directory)
            _make(place, python, content, lock)
        made = (place / MADE).open()
        fcntl.flock(made, fcntl.LOCK_SH)
        os.utime(place / MADE)
        _remove_all_but(MOST, directory)
    with made:
        yield Environment(python=str(python_of(place)), version=version)


def _directory() -> Path:
    """Return the directory of the environments, made and closed to other users."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    directory = (root if root.is_absolute() else Path.home() / ".cache") / "smddp" / "environments"
    try:
        make_private(directory)
        require_unshared(directory)
    except (LocalPlatformError, OSError) as error:
        raise EstimatorError(f"No environment can be kept: {error} XDG_CACHE_HOME names another place.") from error
    return directory


def _digest(python: str, content: ImageContent) -> str:
    """Return a hash of everything in an environment: its Python, its packages, and smddp's code."""
    code = package_directory()
    digest = hashlib.sha256(json.dumps([str(Path(python).resolve()), *content.requirements]).encode())
    for path in sorted(path for path in code.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        digest.update(f"{path.relative_to(code)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _await(lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("waiting for another rehearsal, which makes its environment")
        with Heartbeat("waiting for another rehearsal"):
            fcntl.flock(lock, fcntl.LOCK_EX)


def _make(place: Path, python: str, content: ImageContent, lock: IO[str]) -> None:
    logger.info("making an environment of %s in %s, once", ", ".join(content.requirements), place)
    try:
        with Heartbeat("making the environment"):
            install(place, python, content.requirements, keep=lock.fileno())
            packages = packages_of(place)
            shutil.copytree(package_directory(), packages / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        (place / MADE).touch()
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _remove_all_but(most: int, directory: Path) -> None:
    """Remove unfinished environments, and all but the last used ones; never one in use."""
    made = {path: path / MADE for path in directory.iterdir() if path.is_dir()}
    newest = sorted(
        (path for path, mark in made.items() if mark.exists()), key=lambda path: -made[path].stat().st_mtime
    )
    for path in made.keys() - newest[:most]:
        if path in newest:
            with made[path].open() as mark:
                try:
                    fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:  # in use
                    continue
                made[path].unlink()  # first: what is left if this process is killed is not finished
        shutil.rmtree(path)


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
