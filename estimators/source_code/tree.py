"""Divide a directory into bundled files and left-out ones: ignored by its ``.smddpignore``, not code, or secret.

A ``.smddpignore`` has the syntax of a ``.gitignore`` (gitignore(5)). An ignored directory is not
entered; among the lines that match a name itself, the last one decides. pathspec parses each line by itself: its own
combinations let a line for a directory decide about files in it, unlike git.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from estimators.errors import EstimatorError
from smddp.secret_text import UNBUNDLED_MARK, holds_private_key

if TYPE_CHECKING:
    from pathspec.pattern import Pattern


IGNORE_FILE = ".smddpignore"

_CLASS = re.compile(r"\[[^\]]*\[:\w*:\]")
"""A POSIX class, which git supports and pathspec misreads."""
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class _IgnoreRules:
    """The rules of one directory. Paths are relative to it; a directory's path ends with ``/``."""

    lines: Sequence[tuple[str, Pattern]]
    """Each line's text without ``!``, and its pattern."""

    @classmethod
    def of(cls, root: Path) -> _IgnoreRules:
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


CACHE = "__pycache__/"

_NO_CODE = frozenset({IGNORE_FILE, ".git", ".git/", ".hg/", ".svn/", ".venv/", ".smddp/", CACHE})
_EDITORS_LOCK = ".#"
"""Emacs locks a file by a link with this prefix, whose target is a user and not a path."""
_SECRET_NAMES = frozenset(
    {
        *(".env", ".envrc", ".netrc", "_netrc", ".pypirc", ".npmrc", ".boto", ".s3cfg", ".git-credentials"),
        *(".pgpass", ".my.cnf", ".mylogin.cnf", ".htpasswd", ".dockercfg", ".vault-token", ".databrickscfg"),
        *("kaggle.json", "credentials.json", "application_default_credentials.json", "secrets.toml"),
        *(".aws/", ".ssh/", ".gnupg/", ".kube/", ".docker/", ".azure/", ".huggingface/"),
        *(".config/gcloud/", "huggingface/token", "huggingface/stored_tokens"),
    }
)
"""Ends of paths that are secret."""
_SECRET_NAME = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519|xmss)(_sk)?([-_.].*)?"
    r"|\.env\..*|.*(service[-_]?account|client_secret).*\.json"
    r"|.*\.(env|p12|pfx|jks|keystore|kdbx|ppk|tfstate|tfstate\.backup|tfvars)"
)
_NO_SECRET = (".example", ".sample", ".template", ".dist", ".pub")
_MAY_HOLD_KEYS = (".pem", ".key")
_PRIVATE_KEY = b"PRIVATE KEY-----"
"""In a file with such an ending, this marker alone makes it a secret."""
_KEY_WITHIN = 64 * 2**10
"""Bytes at the beginning of a file that are searched for a private key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A directory as it is bundled. Paths are relative to it, use ``/``, and end with ``/`` for directories."""

    root: Path
    files: Sequence[str]
    """The files to bundle. Links are followed, because their targets may be absent in the container."""
    empty: Sequence[str]
    """The directories to bundle that have no entries."""
    links_out: Sequence[str]
    """The bundled links that lead out of the directory."""
    dangling: Sequence[str]
    """The links whose targets are absent. They are not bundled."""
    left_out: Sequence[str]
    """The paths left out, including secrets; for a left-out directory only itself."""
    secrets: Sequence[str]
    """The paths left out because they look like secrets."""
    let_through: Sequence[str]
    """The paths that look like secrets, but that the ``.smddpignore`` includes by name."""

    @classmethod
    def of(cls, root: Path, without: Sequence[Path] = ()) -> Tree:
        """Scan a directory, skipping the paths `without`, which are not code.

        Raise EstimatorError if the ``.smddpignore`` or a directory can't be read, or a link leads to a directory above
        it.
        """
        rules = _IgnoreRules.of(root)
        lists = ("files", "empty", "links_out", "dangling", "left_out", "secrets", "let_through")
        found: dict[str, list[str]] = {name: [] for name in lists}
        excluded = {path.resolve() for path in without}
        _walk(root, rules, excluded, found)
        return cls(root=root, **found)

    def leaves_out(self, file: str) -> bool:
        """Return whether a file is left out, by itself or with a directory above it."""
        return any(file == path or (path.endswith("/") and file.startswith(path)) for path in self.left_out)


def _walk(root: Path, rules: _IgnoreRules, excluded: set[Path], found: dict[str, list[str]]) -> None:
    """Append each path to the lists in `found`, which are named after the fields of `Tree`."""
    inside = root.resolve()
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_identity(root),))]
    while pending:
        below, above = pending.pop()
        entries = sorted(_entries(root / below), key=lambda entry: entry.name)
        if below and not entries:
            found["empty"].append(below)
        for entry in entries:
            try:
                status = entry.stat()
            except FileNotFoundError:
                path = f"{below}{entry.name}"
                if entry.is_symlink() and not rules.ignores(path) and not entry.name.startswith(_EDITORS_LOCK):
                    found["dangling"].append(path)
                continue
            except OSError as fault:
                raise EstimatorError(f"{entry.path} can't be read: {fault.strerror}") from fault
            is_directory = stat.S_ISDIR(status.st_mode)
            path = f"{below}{entry.name}{'/' if is_directory else ''}"
            if rules.ignores(path) or not _is_code(root, path, status):
                found["left_out"].append(path)
            elif excluded and Path(entry.path).resolve() in excluded:
                continue
            elif (is_secret := _looks_secret(entry, path)) and not rules.names(path):
                found["left_out"].append(path)
                found["secrets"].append(path)
            else:
                if is_secret:
                    found["let_through"].append(path)
                if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(inside):
                    found["links_out"].append(path)
                if is_directory:
                    identity = status.st_dev, status.st_ino
                    if identity in above:
                        raise EstimatorError(f"{entry.path} leads to a directory that it lies in")
                    pending.append((path, (*above, identity)))
                else:
                    found["files"].append(path)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError as fault:
        raise EstimatorError(f"{directory} can't be read: {fault.strerror}") from fault


def _is_code(root: Path, path: str, status: os.stat_result) -> bool:
    """Return whether a path is a file or directory that may be code, and is of neither a tool nor a local platform."""
    if _own_name(path) in _NO_CODE:
        return False
    if stat.S_ISDIR(status.st_mode):
        return not (root / path / UNBUNDLED_MARK).is_file()
    return stat.S_ISREG(status.st_mode)


def _identity(directory: Path) -> tuple[int, int]:
    status = directory.stat()
    return status.st_dev, status.st_ino


def _own_name(path: str) -> str:
    """Return the last name in a path, with its ``/``."""
    return path[path.rstrip("/").rfind("/") + 1 :]


def _looks_secret(entry: os.DirEntry[str], path: str) -> bool:
    """Return whether a path, its link's target, or a private key in its content marks it as secret."""
    paths = [path]
    if entry.is_symlink():
        paths.append(f"{Path(entry.path).resolve()}{'/' if path.endswith('/') else ''}")
    return any(map(_is_secret_path, paths)) or (not path.endswith("/") and _holds_private_key(Path(entry.path)))


def _is_secret_path(path: str) -> bool:
    path = path.lower()
    name = _own_name(path)
    if name.endswith(_NO_SECRET):
        return False
    parts = path.rstrip("/").split("/")
    ends = {"/".join(parts[-count:]) + path[len(path.rstrip("/")) :] for count in (1, 2)}
    return not _SECRET_NAMES.isdisjoint(ends) or _SECRET_NAME.fullmatch(name) is not None


def _holds_private_key(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            content = file.read(_KEY_WITHIN)
    except OSError:  # copying it will report the error
        return False
    return holds_private_key(content) or (path.name.lower().endswith(_MAY_HOLD_KEYS) and _PRIVATE_KEY in content)
