"""The exit codes of ranks, and how they get past launchers: AWS's toolkit and launchers turn any code but 0 into 1.

``smddp.container.init`` names a directory in the environment of the program that it starts. A rank that ends through
``smddp.run`` with 0 or 75 writes its exit code there, to a file named after its process ID. A rank without a file did
not end well. In the other direction, a launcher that must not get a stop's signal reads in this directory that a stop
came.

The job may write there what it likes: a directory that is gone, or a file that holds no number, means nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

RESUMABLE = 75
"""The exit code of a job that stopped with its work saved: run it again and it goes on (EX_TEMPFAIL of sysexits.h)."""

EXIT_CODES_VARIABLE = "SMDDP_ENDINGS"
"""Names the directory; unset where nobody asks."""

_PLACES = ("/tmp", "/dev/shm")  # noqa: S108, the directory's name can't be guessed
_STOP = "stop"


def as_shell(returncode: int) -> int:
    """Return a return code of Python's, -n for a process that signal n killed, as a shell has it: 128 + n."""
    return returncode if returncode >= 0 else 128 - returncode


def make_directory(environ: Mapping[str, str]) -> str | None:
    """Make a new directory, in TMPDIR or wherever one can be made; return None if nowhere."""
    for place in (environ.get("TMPDIR"), *_PLACES):
        if place:
            directory = f"{place}/smddp-exit-codes-{os.urandom(8).hex()}"
            with suppress(OSError):
                os.mkdir(directory, mode=0o700)  # noqa: PTH102, this must start fast: no pathlib
                return directory
    return None


def write_exit_code(code: int, environ: Mapping[str, str]) -> None:
    """Write the exit code with which this process is about to end.

    Raises:
        OSError: It can't be written: the disk is full, or the directory belongs to another user.
    """
    directory = environ.get(EXIT_CODES_VARIABLE)
    if directory and os.path.isdir(directory):  # noqa: PTH112
        with open(f"{directory}/{os.getpid()}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(str(code))


def read_exit_codes(directory: str) -> dict[int, int]:
    """Return the exit codes that processes wrote, by process ID."""
    codes = {}
    with suppress(OSError):
        for process in filter(str.isdecimal, os.listdir(directory)):  # noqa: PTH208
            with suppress(OSError, ValueError), open(f"{directory}/{process}", encoding="ascii") as file:  # noqa: PTH123
                codes[int(process)] = int(file.read())
    return codes


def announce_stop(directory: str) -> None:
    """Tell whoever asks that the ranks are being told to stop."""
    with suppress(OSError):
        os.close(os.open(f"{directory}/{_STOP}", os.O_CREAT | os.O_WRONLY, 0o600))


def stop_announced(environ: Mapping[str, str]) -> bool:
    """Return whether the container's first process tells the ranks to stop; False where there is none."""
    directory = environ.get(EXIT_CODES_VARIABLE)
    return bool(directory) and os.path.exists(f"{directory}/{_STOP}")  # noqa: PTH110
