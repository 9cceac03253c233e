"""Pass the exit codes of ranks around launchers: AWS's toolkit and launchers turn any code but 0 into 1.

``smddp.container.init`` puts a directory's name into the environment of the program that it starts. A rank that ends
through ``smddp.run`` with 0 or 75 writes its exit code there, to a file named after its process ID. A rank without a
file failed. In the other direction, a launcher that must not receive a stop's signal finds a stop file there.

The directory is not trusted: an absent directory, or a file without a number, counts as no exit code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

RESUMABLE = 75
"""The exit code of a job that saved and stopped: run it again to resume (EX_TEMPFAIL of sysexits.h)."""

EXIT_CODES_VARIABLE = "SMDDP_ENDINGS"
"""The variable with the directory's name; unset if no process reads exit codes."""

REPORTS_VARIABLE = "SMDDP_LAUNCHER_REPORTS"
"""Set for ranks whose launcher reports a killed rank: it knows the signal, and what the rank printed."""

_PLACES = ("/tmp", "/dev/shm")  # noqa: S108, the directory's name can't be guessed
_STOP = "stop"


def as_shell(returncode: int) -> int:
    """Convert Python's return code to a shell's: -n, for a process killed by signal n, becomes 128 + n."""
    return returncode if returncode >= 0 else 128 - returncode


def make_directory(environ: Mapping[str, str]) -> str | None:
    """Create a new directory in TMPDIR, /tmp or /dev/shm; None if all are read-only."""
    for place in (environ.get("TMPDIR"), *_PLACES):
        if place:
            directory = f"{place}/smddp-exit-codes-{os.urandom(8).hex()}"
            with suppress(OSError):
                os.mkdir(directory, mode=0o700)  # noqa: PTH102, this must start fast: no pathlib
                return directory
    return None


def write_exit_code(code: int, environ: Mapping[str, str]) -> None:
    """Write this process's exit code just before its end. Raise OSError, for example if the disk is full."""
    directory = environ.get(EXIT_CODES_VARIABLE)
    if directory and os.path.isdir(directory):  # noqa: PTH112
        with open(f"{directory}/{os.getpid()}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(str(code))


def read_exit_codes(directory: str) -> dict[int, int]:
    """Return the exit codes in the directory, by process ID."""
    codes = {}
    with suppress(OSError):
        for process in filter(str.isdecimal, os.listdir(directory)):  # noqa: PTH208
            with suppress(OSError, ValueError), open(f"{directory}/{process}", encoding="ascii") as file:  # noqa: PTH123
                codes[int(process)] = int(file.read())
    return codes


def announce_stop(directory: str) -> None:
    """Create the stop file: the ranks are being told to stop."""
    with suppress(OSError):
        os.close(os.open(f"{directory}/{_STOP}", os.O_CREAT | os.O_WRONLY, 0o600))


def stop_announced(environ: Mapping[str, str]) -> bool:
    """Return whether the stop file exists; False without a directory."""
    directory = environ.get(EXIT_CODES_VARIABLE)
    return bool(directory) and os.path.exists(f"{directory}/{_STOP}")  # noqa: PTH110
