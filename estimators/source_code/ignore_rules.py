"""The lines of a ``.smddpignore``, which mean what they mean in a ``.gitignore`` (gitignore(5)).

A directory that is ignored is not looked into, and of the lines that match a name itself the last one decides. pathspec
reads each line; its own ways of joining them let a line for a directory decide over files in it, which git does not.
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
"""A POSIX class, which git knows and pathspec takes for other characters."""
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreRules:
    """The rules of one directory. Paths are relative to it, with ``/`` at the end of a directory's."""

    lines: Sequence[tuple[str, Pattern]]
    """Each line's text without ``!`` and outer ``/``, and what it means."""

    @classmethod
    def of(cls, root: Path) -> IgnoreRules:
        """Read those of a directory; one without a ``.smddpignore`` has none.

        Raises:
            EstimatorError: The file can't be read.
        """
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
        except ValueError as fault:  # it quotes the line
            raise EstimatorError(f"{file}: {fault}. Write each line as in a .gitignore") from fault
        return cls(
            lines=[
                (_stripped(text).removeprefix("!"), line[0])
                for text, line in read
                if line and line[0].include is not None
            ]
        )

    def ignores(self, path: str) -> bool:
        """Return whether a path is ignored, of a directory that is not."""
        return next((bool(line.include) for text, line in reversed(self.lines) if _matches(text, line, path)), False)

    def names(self, path: str) -> bool:
        """Return whether a line without wildcards says that a path is not ignored: somebody thought of this one."""
        return any(
            not line.include and not _WILDCARDS & set(text) and _matches(text, line, path) for text, line in self.lines
        )


def _stripped(text: str) -> str:
    """Return a line without the blanks around it; one behind a backslash stays."""
    bare = text.strip()
    escapes = len(bare) - len(bare.rstrip("\\"))
    return f"{bare} " if escapes % 2 and text.rstrip("\r\n").startswith(f"{bare} ") else bare


@functools.lru_cache(maxsize=256)
def _name_pattern(text: str) -> Pattern:
    """Return what the last part of a line means for a name: its escapes and brackets are git's, not fnmatch's."""
    from pathspec import GitIgnoreSpec

    (pattern,) = GitIgnoreSpec.from_lines([f"/{text}"]).patterns
    return pattern


def _matches(text: str, line: Pattern, path: str) -> bool:
    """Return whether a line matches a path itself, and not merely a directory above it."""
    if text.endswith("/") and not path.endswith("/"):
        return False
    bare = path.rstrip("/")
    parent, _, name = bare.rpartition("/")
    if set(text.strip("/").split("/")) == {"**"}:  # everything
        return True
    if "/" not in text.rstrip("/"):  # it is for names, at any depth
        return line.match_file(path[len(bare) - len(name) :]) is not None
    if text.rstrip("/").endswith("/**"):  # it is for what lies in a directory, and not for that
        return line.match_file(bare) is not None
    if line.match_file(path) is None:
        return False
    if "**" in text:  # the name may be one of several that the rest of the line reaches
        return _name_pattern(text.rstrip("/").rpartition("/")[2]).match_file(name) is not None
    return not parent or line.match_file(f"{parent}/") is None
