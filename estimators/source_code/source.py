"""The location of a job's code: on this machine, on S3, or in a repository that the SDK clones."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCode:
    """The location of a job's code."""

    entry_point: str | None
    """The script, in `source_dir` unless that is None. None for a training recipe."""
    source_dir: str | None
    """The directory to bundle, or an archive on S3."""
    dependencies: tuple[str, ...]
    """Files and directories to bundle next to the script."""
    git: Mapping[str, str] | None = None
    """The repository that the SDK clones, to which the paths above are relative, or None."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> SourceCode:
        """Take the source from parameters of ``PyTorch``."""
        entry_point, source_dir = arguments.get("entry_point"), arguments.get("source_dir")
        if _is_local(source_dir) and isinstance(entry_point, str) and Path(entry_point).is_absolute():
            entry_point = os.path.relpath(entry_point, str(source_dir))
        return cls(
            entry_point=entry_point,
            source_dir=source_dir,
            dependencies=tuple(arguments.get("dependencies") or ()),
            git=arguments.get("git_config") or None,
        )

    @property
    def is_local(self) -> bool:
        """Whether the code is on this machine, so that it can be checked and bundled here."""
        return isinstance(self.entry_point, str) and self.git is None and _is_local(self.source_dir, absent=True)

    @property
    def script(self) -> Path:
        """The entry point's path on this machine."""
        assert self.entry_point is not None
        return Path(self.source_dir or "", self.entry_point)

    @property
    def program(self) -> str:
        """The entry point's path in the bundle: its path in `source_dir`, or its name without one."""
        assert self.entry_point is not None
        return self.entry_point if self.source_dir else Path(self.entry_point).name

    @staticmethod
    def name_in_bundle(dependency: str) -> str:
        """Return a dependency's name in the SDK's archive: empty for a directory with a trailing slash."""
        return dependency.rpartition("/")[2]

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories to bundle."""
        given = [self.source_dir, *self.dependencies]
        return tuple(path for path in map(Path, filter(None, given)) if path.is_dir())

    @property
    def arguments(self) -> dict[str, Any]:
        """The source as parameters of ``PyTorch``."""
        given = {"entry_point": self.entry_point, "source_dir": self.source_dir}
        return {**{name: value for name, value in given.items() if value}, "dependencies": list(self.dependencies)}


def parsed(script: Path) -> ast.Module:
    """Return a script's syntax tree, empty if it can't be read: the checks report that."""
    try:
        return ast.parse(script.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _is_local(source_dir: object, *, absent: bool = False) -> bool:
    if source_dir is None:
        return absent
    return isinstance(source_dir, str) and not source_dir.lower().startswith("s3://")
