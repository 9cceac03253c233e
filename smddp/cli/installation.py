"""The installation of smddp from a clone (``pip install -e``): whether what pip recorded is what the clone has.

An editable installation uses the clone's modules as they are now, but the version, the commands and the requirements as
they were when pip installed it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from smddp._version import __version__
from smddp.display_text import shown_names
from smddp.python_syntax import call_parser

_EXTRA = re.compile(r"extra == [\"']([^\"']+)[\"']")
_COMMANDS = "smddp.commands"
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OutdatedInstallation:
    """An editable installation that is older than its clone."""

    clone: Path
    differences: tuple[str, ...]
    """What the clone has and pip recorded otherwise, such as ``the command plan``."""

    @property
    def found(self) -> str:
        """The differences, in words."""
        listed = shown_names(self.differences, most=_NAMED)
        return f"pip installed an older state of {self.clone}; these differ: {listed}"

    @property
    def remedy(self) -> str:
        """The command that installs it again."""
        return f"pip install -e {shlex.quote(str(self.clone))}"


def outdated() -> OutdatedInstallation | None:
    """Return how the installation differs from its clone; None if it does not, or if it is not an editable one."""
    try:
        installed = distribution("smddp")
    except PackageNotFoundError:
        return None
    source = json.loads(installed.read_text("direct_url.json") or "{}")
    if not source.get("dir_info", {}).get("editable"):
        return None
    clone = Path(unquote(urlsplit(source["url"]).path))
    differences = tuple(_differences(installed, _project(clone / "pyproject.toml")))
    return OutdatedInstallation(clone=clone, differences=differences) if differences else None


def _project(path: Path) -> Mapping[str, Any]:
    """Return the table ``project`` of a pyproject.toml; empty if it can't be read, as on Python 3.10."""
    try:
        import tomllib
    except ModuleNotFoundError:
        return {}
    try:
        project: Mapping[str, Any] = tomllib.loads(path.read_text()).get("project", {})
    except (OSError, ValueError):
        return {}
    return project


def _differences(installed: Distribution, project: Mapping[str, Any]) -> Iterator[str]:
    if installed.version != __version__:
        yield f"the version ({installed.version} is installed)"
    if not project:
        return
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    stated = {(group, name, value) for group, entries in groups.items() for name, value in entries.items()}
    recorded = {(entry.group, entry.name, entry.value) for entry in installed.entry_points}
    for group, name in sorted({(group, name) for group, name, _ in stated ^ recorded}):
        yield f"the command {name}" if group == _COMMANDS else f"{name} of {group}"
    yield from _unrecorded_requirements(installed, project)


def _unrecorded_requirements(installed: Distribution, project: Mapping[str, Any]) -> Iterator[str]:
    from packaging.requirements import Requirement  # slow to import, and every command imports this file

    recorded = set()
    for each in (call_parser(Requirement, text) for text in installed.requires or ()):
        extra = _EXTRA.search(str(each.marker))
        recorded.add((each.name, each.specifier, extra[1] if extra else ""))
    extras = {"": project.get("dependencies", []), **project.get("optional-dependencies", {})}
    for extra, texts in extras.items():
        for each in (call_parser(Requirement, text) for text in texts):
            if each.name != "smddp" and (each.name, each.specifier, extra) not in recorded:
                yield f"the requirement {each.name}{each.specifier}"
