"""A job's names and values as shell text: all files that a shell runs get their names and values from here.

``export`` accepts identifiers only, and a channel such as ``train-data`` makes the variable ``SM_CHANNEL_TRAIN-DATA``,
which is no identifier. ``env`` sets such a variable for the command that it starts. ``env`` also sets variables that
would change the shell itself or the commands before, such as PATH. The other variables are exported, because every user
of the host can read the arguments of a command while it runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_SHELL = re.compile(r"_|PATH|IFS|ENV|E?UID|PPID|GROUPS|SHELLOPTS|POSIXLY_CORRECT|(BASH|LD_|SLURM_).*")
"""Variables that the shell, the loader or Slurm's commands read or write themselves."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""Names that the Estimator's checks allow for a variable, or for a channel after ``SM_CHANNEL_``."""


def exports(variables: Mapping[str, str]) -> list[str]:
    """Return the ``export`` commands of the variables that do not change the shell itself."""
    return [f"export {name}={quoted(value)}" for name, value in variables.items() if _is_exported(name)]


def env_words(variables: Mapping[str, str]) -> list[str]:
    """Return ``env`` and the assignments of the other variables, to stand before a command; empty if there are none."""
    others = {name: value for name, value in variables.items() if not _is_exported(name)}
    assert all(map(_NAME.fullmatch, others)), list(others)
    return ["env", *(f"{name}={value}" for name, value in others.items())] if others else []


def _is_exported(name: str) -> bool:
    return _IDENTIFIER.fullmatch(name) is not None and _OF_THE_SHELL.fullmatch(name) is None


def command_line(words: Iterable[str]) -> str:
    """Return the words as one shell command, each quoted."""
    return " ".join(map(quoted, words))


def quoted(word: str) -> str:
    """Return a word quoted for the shell.

    OpenPAI expands ``<% … %>`` as its own reference, so the word contains ``<''%`` instead, which the shell joins.
    """
    return shlex.quote(word).replace("<%", "<''%")
