"""docs/reference/public-names.md lists each public name: adding or removing one needs a change of the page."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import smddp.errors

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
PAGE = REFERENCE / "public-names.md"
_EXPORTED = (
    *("smddp", "smddp.checkpoint", "smddp.metrics", "smddp.data.shards", "smddp.data.pipes"),
    *("smddp.lightning", "smddp.transformers", "estimators", "estimators.local"),
)
"""Modules whose whole ``__all__`` is public. Of any other module, the names that the reference shows are."""
_ERRORS = ("smddp.errors", "estimators.errors")
_SHOWN = re.compile(r"^::: (\S+)(?:\n    options:\n      heading: (\S+))?$", re.MULTILINE)


def public_names() -> dict[str, set[str]]:
    """The public names of each module, from the code and from the pages that show its docstrings."""
    names = {module: set(importlib.import_module(module).__all__) for module in _EXPORTED}
    names |= {module: _own_exceptions(module) for module in _ERRORS}
    for page in REFERENCE.glob("*.md"):
        for path, heading in _SHOWN.findall(page.read_text()):
            if path not in names:
                module, _, name = (heading or path).rpartition(".")
                names.setdefault(module, set()).add(name)
    return names


def _own_exceptions(module: str) -> set[str]:
    values = [value for value in vars(importlib.import_module(module)).values() if isinstance(value, type)]
    return {each.__name__ for each in values if issubclass(each, Exception) and each.__module__ == module}


def listed() -> dict[str, set[str]]:
    rows = re.findall(r"^\| `((?:smddp|estimators)[\w.]*)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return {module: set(re.findall(r"`(\w+)`", cell)) for module, cell in rows}


def test_the_page_lists_each_public_name_and_no_other() -> None:
    assert listed() == public_names(), (
        f"change {PAGE.name} along, and CHANGELOG.md; a name goes by way of a deprecation"
    )


def test_each_listed_name_can_be_imported() -> None:
    absent = [
        f"{module}.{name}"
        for module, names in listed().items()
        for name in sorted(names)
        if not hasattr(importlib.import_module(module), name)
    ]
    assert not absent


def test_a_name_that_comes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smddp.errors, "NewError", type("NewError", (Exception,), {"__module__": "smddp.errors"}), False)
    assert listed() != public_names()
