"""The handle on the process that removes a platform's directory, and the lifeline by which it knows when."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from estimators.local.directory_reaper import remove_tree

_REAP_SECONDS = 5.0
"""How long a directory that is left waits for those who have its lifeline yet."""
_PROGRAM = str(Path(__file__).with_name("directory_reaper.py"))


class Lifeline:
    """An end of the pipe that keeps the reaper waiting: it is open in each process that writes in the directory.

    Args:
        descriptor: The pipe's end for writing.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # only whoever is handed it on purpose is to have it
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def also_remove(self, path: Path) -> None:
        """Have something outside the directory removed, too, whether or not it is there yet."""
        with suppress(BrokenPipeError):  # the reaper was killed: what ends in order removes it by itself
            os.write(self._descriptor, os.fsencode(path) + b"\n")

    def close(self) -> None:
        """Let go."""
        os.close(self._descriptor)


class DirectoryReaperProcess:
    """A process that removes a directory once nobody has its lifeline any more.

    Args:
        directory: It need not be there yet: where the reaper comes first, no SIGKILL comes too early to be cleaned up.
    """

    def __init__(self, directory: Path) -> None:
        waiting, descriptor = os.pipe()
        self.lifeline = Lifeline(descriptor)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _PROGRAM, str(directory)],
                stdin=waiting,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that it outlives whatever ends this process
                cwd="/",
            )
        finally:
            os.close(waiting)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait(self, timeout: float) -> bool:
        """Return whether it has ended within some seconds, and so everybody who had the lifeline."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


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
        with suppress(OSError):  # the reaper tries again
            remove_tree(directory)
    finally:
        reaper.lifeline.close()
        reaper.wait(_REAP_SECONDS)
