"""What a job says, in a shell's words: the one place where a file that a shell runs gets names and values from.

``export`` takes identifiers alone, and a channel such as ``train-data`` makes a variable, ``SM_CHANNEL_TRAIN-DATA``,
that is none. ``env`` sets it for the command that it starts, and also what would change the shell itself, or what it
runs before the command, such as PATH. The others are exported: an argument of a command can be read by every user of
the host, for as long as the command runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_SHELL = re.compile(r"_|PATH|IFS|ENV|E?UID|PPID|GROUPS|SHELLOPTS|POSIXLY_CORRECT|(BASH|LD_|SLURM_).*")
"""What the shell, the loader or Slurm's commands read or write themselves."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""What the Estimator's checks let through as the name of a variable, or of a channel behind ``SM_CHANNEL_``."""


def exports(variables: Mapping[str, str]) -> list[str]:
    """Return the commands that set the variables a shell can set for another program alone."""
    return [f"export {name}={quoted(value)}" for name, value in variables.items() if _is_exported(name)]


def env_words(variables: Mapping[str, str]) -> list[str]:
    """Return the words in front of a command that set the other variables for it; none if there are no others."""
    others = {name: value for name, value in variables.items() if not _is_exported(name)}
    assert all(map(_NAME.fullmatch, others)), list(others)
    return ["env", *(f"{name}={value}" for name, value in others.items())] if others else []


def _is_exported(name: str) -> bool:
    return _IDENTIFIER.fullmatch(name) is not None and _OF_THE_SHELL.fullmatch(name) is None


def command_line(words: Iterable[str]) -> str:
    """Return a command of these words."""
    return " ".join(map(quoted, words))


def quoted(word: str) -> str:
    """Return a word that the shell takes as it is.

    OpenPAI reads ``<% … %>`` as a reference of its own and finds none here: the shell joins ``<''%``.
    """
    return shlex.quote(word).replace("<%", "<''%")
