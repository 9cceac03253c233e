"""The handle on the process that removes a platform's directory, and the lifeline by which it knows when."""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from estimators.local.directory_reaper import remove_named

_REAP_SECONDS = 5.0
"""How long a directory that is left waits for those who hold its lifeline yet."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROGRAM = str(Path(__file__).with_name("directory_reaper.py"))


class Lifeline:
    """A descriptor of the locked file that keeps the reaper waiting: each process that writes in the directory has one.

    Args:
        descriptor: Of the open file that holds the lock.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # only whoever is handed it on purpose is to have it
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def also_remove(self, path: Path) -> None:
        """Have something removed at the end, whether or not it is there yet."""
        os.write(self._descriptor, os.fsencode(path) + b"\0")

    def close(self) -> None:
        """Let go."""
        os.close(self._descriptor)


class DirectoryReaperProcess:
    """A process that removes a directory once no process holds its lifeline any more.

    If it is killed together with all of those, the next one in the same place does its work.

    Args:
        directory: It need not be there yet: where the reaper comes first, no SIGKILL comes too early to be cleaned up.
    """

    def __init__(self, directory: Path) -> None:
        remove_left(directory.parent)
        self._path = directory.with_name(f".{directory.name}{_suffix()}")
        self.lifeline = _locked(self._path)
        self.lifeline.also_remove(directory)
        try:
            self._process = self._start()
        except OSError:
            self._path.unlink()
            self.lifeline.close()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", _PROGRAM, str(self._path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that it outlives whatever ends this process
            cwd="/",
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait(self, timeout: float = _REAP_SECONDS) -> bool:
        """Return whether all is removed within some seconds, and so everybody gone who held the lifeline."""
        if self._process.poll():  # it was killed
            self._process = self._start()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def remove_left(place: Path) -> None:
    """Remove what was left in a place when reapers were killed, too."""
    for lifeline in place.glob(f".*{_suffix()}"):
        with suppress(OSError):  # a platform runs there, or somebody else removes it just now
            remove_named(lifeline, wait=False)


def _locked(path: Path) -> Lifeline:
    """Make a lifeline. It gets its name when it is locked: what has the name and is free was left."""
    unnamed = path.with_suffix(".new")
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unnamed.rename(path)
    return Lifeline(descriptor)


def _suffix() -> str:
    """How a lifeline's name ends: where machines share a directory, each sees only its own processes' locks."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:  # no Linux
        boot = "boot"
    return f".{boot}.lifeline"


@contextmanager
def reaped_directory(name: str) -> Iterator[tuple[Path, Lifeline]]:
    """Make a temporary directory that goes however this process ends, with its lifeline.

    Args:
        name: What its own name begins with.
    """
    # Resolved: Docker may share the directory itself, and not a link to it.
    directory = Path(tempfile.gettempdir()).resolve() / f"{name}-{secrets.token_hex(8)}"
    reaper = DirectoryReaperProcess(directory)
    try:
        directory.mkdir(mode=0o700)
        yield directory, reaper.lifeline
    finally:
        reaper.lifeline.close()
        reaper.wait()
