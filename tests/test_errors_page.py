"""docs/reference/messages.md shows messages that there are: each is found in the source, word by word."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "messages.md"
_ROW = re.compile(r"^\| `(.+?)` \| ", re.MULTILINE)
_PLACE = re.compile(r"%[sdr]|%\.\df|…")


@cache
def texts() -> tuple[str, ...]:
    """All texts of the source, with … for what is filled in."""
    found = []
    for path in [*(ROOT / "estimators").rglob("*.py"), *(ROOT / "smddp").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(_PLACE.sub("…", node.value))
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(str(part) for part in parts))
    return tuple(found)


def messages() -> list[str]:
    return _ROW.findall(PAGE.read_text())


def test_the_page_has_its_rows() -> None:
    assert len(messages()) == PAGE.read_text().count("\n| `") > 25


@pytest.mark.parametrize("message", messages())
def test_a_message_of_the_page_is_one_of_the_source(message: str) -> None:
    assert any(message in text for text in texts()), "reword the page, or the message"
