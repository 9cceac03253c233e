"""What of a directory is bundled, and what stays here: by its ``.smddpignore``, as no code, or as a secret."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from estimators.errors import EstimatorError
from estimators.secret_text import holds_private_key
from estimators.source_code.ignore_rules import IGNORE_FILE, IgnoreRules

CACHE = "__pycache__/"

_NO_CODE = frozenset({IGNORE_FILE, ".git", ".git/", ".hg/", ".svn/", ".venv/", CACHE})
_SECRET_NAMES = frozenset(
    {
        *(".env", ".envrc", ".netrc", "_netrc", ".pypirc", ".npmrc", ".boto", ".s3cfg", ".git-credentials"),
        *(".pgpass", ".my.cnf", ".mylogin.cnf", ".htpasswd", ".dockercfg", ".vault-token", ".databrickscfg"),
        *("kaggle.json", "credentials.json", "application_default_credentials.json", "secrets.toml"),
        *(".aws/", ".ssh/", ".gnupg/", ".kube/", ".docker/", ".azure/", ".huggingface/"),
        *(".config/gcloud/", "huggingface/token", "huggingface/stored_tokens"),
    }
)
"""The ends of paths."""
_SECRET_NAME = re.compile(
    r"id_(rsa|dsa|ecdsa|ed25519|xmss)(_sk)?([-_.].*)?"
    r"|\.env\..*|.*(service[-_]?account|client_secret).*\.json"
    r"|.*\.(env|p12|pfx|jks|keystore|kdbx|ppk|tfstate|tfstate\.backup|tfvars)"
)
_NO_SECRET = (".example", ".sample", ".template", ".dist", ".pub")
_MAY_HOLD_KEYS = (".pem", ".key")
_PRIVATE_KEY = b"PRIVATE KEY-----"
"""In a file by these names, it is enough."""
_KEY_WITHIN = 64 * 2**10
"""Bytes at the beginning of a file in which a private key is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A directory as it is bundled. Paths are relative to it, with ``/`` between names and after a directory."""

    root: Path
    files: Sequence[str]
    """What is bundled. Links are followed: what they lead to may not be in the container."""
    links_out: Sequence[str]
    """The links among it that lead out of the directory."""
    left_out: Sequence[str]
    """What is not, its secrets included; of a directory that is not, nothing else."""
    secrets: Sequence[str]
    """What is not because it looks like a secret."""
    let_through: Sequence[str]
    """What looks like a secret, and is bundled because the ``.smddpignore`` says so by name."""

    @classmethod
    def of(cls, root: Path, without: Sequence[Path] = ()) -> Tree:
        """Look through a directory.

        Args:
            root: It.
            without: Files and directories that are no code, wherever they lie.

        Raises:
            EstimatorError: Its ``.smddpignore`` can't be read, a directory can't be, or holds a link to one above it.
        """
        rules = IgnoreRules.of(root)
        found: dict[str, list[str]] = {"files": [], "links_out": [], "left_out": [], "secrets": [], "let_through": []}
        excluded = {path.resolve() for path in without}
        _walk(root, rules, excluded, found)
        return cls(root=root, **found)

    def leaves_out(self, file: str) -> bool:
        """Return whether a file is not bundled, by itself or with a directory that it lies in."""
        return any(file == path or (path.endswith("/") and file.startswith(path)) for path in self.left_out)


def _walk(root: Path, rules: IgnoreRules, excluded: set[Path], found: dict[str, list[str]]) -> None:
    """Put each path where it belongs: into the lists by the names of a `Tree`'s fields."""
    inside = root.resolve()
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_identity(root),))]
    while pending:
        below, above = pending.pop()
        for entry in sorted(_entries(root / below), key=lambda entry: entry.name):
            try:
                status = entry.stat()
            except FileNotFoundError:  # a link that leads nowhere is nothing to copy
                continue
            except OSError as fault:
                raise EstimatorError(f"{entry.path} can't be read: {fault.strerror}") from fault
            is_directory = stat.S_ISDIR(status.st_mode)
            path = f"{below}{entry.name}{'/' if is_directory else ''}"
            is_code = is_directory or stat.S_ISREG(status.st_mode)
            if rules.ignores(path) or not is_code or _own_name(path) in _NO_CODE:
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


def _identity(directory: Path) -> tuple[int, int]:
    status = directory.stat()
    return status.st_dev, status.st_ino


def _own_name(path: str) -> str:
    """Return the last name of a path, with its ``/``."""
    return path[path.rstrip("/").rfind("/") + 1 :]


def _looks_secret(entry: os.DirEntry[str], path: str) -> bool:
    """Return whether a path, or that of what it leads to, or a private key within, says secret."""
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
    except OSError:  # what can't be read is said when it is copied
        return False
    return holds_private_key(content) or (path.name.lower().endswith(_MAY_HOLD_KEYS) and _PRIVATE_KEY in content)
