"""How ranks ended, in their own words: AWS's toolkit and launchers turn any exit code of theirs but 0 into 1.

``smddp.container.init`` names a directory in the environment of what it starts; a rank that ends well through
``smddp.run``, with 0 or 75, leaves its exit code there, under its process's number. Whoever leaves no word did not end
well. The other way round, a launcher below that must not be told of a stop itself reads there that one came.

The directory is the job's to spoil, as any: one that is gone, or a word that makes no sense, says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

EXIT_CODES_VARIABLE = "SMDDP_ENDINGS"
"""Names the directory; unset where nobody asks."""

_PLACES = ("/tmp", "/dev/shm")  # noqa: S108, the directory's name can't be guessed
_STOP = "stop"


def make_directory(environ: Mapping[str, str]) -> str | None:
    """A new directory for words, in TMPDIR, or wherever else one can be made; None if nowhere."""
    for place in (environ.get("TMPDIR"), *_PLACES):
        if place:
            directory = f"{place}/smddp-endings-{os.urandom(8).hex()}"
            with suppress(OSError):
                os.mkdir(directory, mode=0o700)  # noqa: PTH102, this must start fast: no pathlib
                return directory
    return None


def write_exit_code(code: int, environ: Mapping[str, str]) -> None:
    """Tell that this process is about to end with this exit code.

    Raises:
        OSError: It can't be told: the disk is full, or the directory another user's.
    """
    directory = environ.get(EXIT_CODES_VARIABLE)
    if directory and os.path.isdir(directory):  # noqa: PTH112
        with open(f"{directory}/{os.getpid()}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(str(code))


def read_exit_codes(directory: str) -> dict[int, int]:
    """The exit codes that processes left, by their numbers."""
    words = {}
    with suppress(OSError):
        for process in filter(str.isdecimal, os.listdir(directory)):  # noqa: PTH208
            with suppress(OSError, ValueError), open(f"{directory}/{process}", encoding="ascii") as file:  # noqa: PTH123
                words[int(process)] = int(file.read())
    return words


def announce_stop(directory: str) -> None:
    """Tell whoever asks that the ranks are being told to stop."""
    with suppress(OSError):
        os.close(os.open(f"{directory}/{_STOP}", os.O_CREAT | os.O_WRONLY, 0o600))


def stop_announced(environ: Mapping[str, str]) -> bool:
    """Whether the container's first process tells the ranks to stop; False where there is none."""
    directory = environ.get(EXIT_CODES_VARIABLE)
    return bool(directory) and os.path.exists(f"{directory}/{_STOP}")  # noqa: PTH110
