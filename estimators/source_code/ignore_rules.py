"""The lines of a ``.smddpignore``, with the meaning of a ``.gitignore`` (gitignore(5)).

An ignored directory is not entered; among the lines that match a name itself, the last one decides. pathspec parses
each line by itself: its own combinations let a line for a directory decide about files in it, unlike git.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from estimators.errors import EstimatorError

if TYPE_CHECKING:
    from pathspec.pattern import Pattern

IGNORE_FILE = ".smddpignore"

_CLASS = re.compile(r"\[[^\]]*\[:\w*:\]")
"""A POSIX class, which git supports and pathspec misreads."""
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreRules:
    """The rules of one directory. Paths are relative to it; a directory's path ends with ``/``."""

    lines: Sequence[tuple[str, Pattern]]
    """Each line's text without ``!``, and its pattern."""

    @classmethod
    def of(cls, root: Path) -> IgnoreRules:
        """Read a directory's ``.smddpignore``, if it has one; raise EstimatorError if it can't be read."""
        from pathspec import GitIgnoreSpec

        file = root / IGNORE_FILE
        try:
            texts = file.read_text(encoding="utf-8-sig").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return cls(lines=())
        except (OSError, UnicodeDecodeError) as fault:
            raise EstimatorError(f"{file} can't be read: {fault}") from fault
        for text in texts:
            if _CLASS.search(text) and not text.startswith("#"):
                raise EstimatorError(
                    f"{file}: {text!r} has a class of characters such as [:digit:], which is not read here. Write the "
                    "characters themselves, as [0-9]"
                )
        try:
            read = [(text, GitIgnoreSpec.from_lines([text]).patterns) for text in texts]
        except ValueError as fault:  # the message quotes the line
            raise EstimatorError(f"{file}: {fault}. Write each line as in a .gitignore") from fault
        return cls(
            lines=[
                (_stripped(text).removeprefix("!"), line[0])
                for text, line in read
                if line and line[0].include is not None
            ]
        )

    def ignores(self, path: str) -> bool:
        """Return whether a path is ignored, given that its directory is not."""
        return next((bool(line.include) for text, line in reversed(self.lines) if _matches(text, line, path)), False)

    def names(self, path: str) -> bool:
        """Return whether a line without wildcards includes this path explicitly."""
        return any(
            not line.include and not _WILDCARDS & set(text) and _matches(text, line, path) for text, line in self.lines
        )


def _stripped(text: str) -> str:
    """Return a line without surrounding blanks, except a trailing blank after a backslash."""
    bare = text.strip()
    escapes = len(bare) - len(bare.rstrip("\\"))
    return f"{bare} " if escapes % 2 and text.rstrip("\r\n").startswith(f"{bare} ") else bare


@functools.lru_cache(maxsize=256)
def _name_pattern(text: str) -> Pattern:
    """Return the pattern for the last part of a line, with git's escapes and brackets instead of fnmatch's."""
    from pathspec import GitIgnoreSpec

    (pattern,) = GitIgnoreSpec.from_lines([f"/{text}"]).patterns
    return pattern


def _matches(text: str, line: Pattern, path: str) -> bool:
    """Return whether a line matches a path itself, not only a directory above it."""
    if text.endswith("/") and not path.endswith("/"):
        return False
    bare = path.rstrip("/")
    parent, _, name = bare.rpartition("/")
    if set(text.strip("/").split("/")) == {"**"}:  # everything
        return True
    if "/" not in text.rstrip("/"):  # matches names at any depth
        return line.match_file(path[len(bare) - len(name) :]) is not None
    if text.rstrip("/").endswith("/**"):  # matches the content of a directory, not the directory
        return line.match_file(bare) is not None
    if line.match_file(path) is None:
        return False
    if "**" in text:  # the rest of the line may match several names
        return _name_pattern(text.rstrip("/").rpartition("/")[2]).match_file(name) is not None
    return not parent or line.match_file(f"{parent}/") is None
