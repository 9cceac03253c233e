"""docs/reference/messages.md shows messages that there are: each is found in the source, and looked for by a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "messages.md"
_ROW = re.compile(r"^\| `(.+?)` \| ", re.MULTILINE)
_PLACE = re.compile(r"%[sdr]|%\.\df|…")


_ESCAPE = re.compile(r"\\(?=[^\w])")
"""Before a character that a regular expression is to take as it is."""
_DISTINCT = 8
"""So many characters at least make a piece of a message that a test may know it by."""


@cache
def texts(*rooms: str) -> tuple[str, ...]:
    """All texts of some rooms but docstrings, with … for what is filled in."""
    return tuple(
        text
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if path != Path(__file__)
        for text in _texts_in(ast.parse(path.read_text()))
    )


def _texts_in(tree: ast.AST) -> Iterator[str]:
    passed_over = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    passed_over |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed_over:
            yield _PLACE.sub("…", node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield "".join(str(part) for part in parts)


@cache
def of_tests() -> str:
    """All texts of the tests, a line each."""
    return "\n".join(_ESCAPE.sub("", text) for text in texts("tests"))


def pieces(text: str) -> Iterator[str]:
    """Yield what a test may look for of a text: two words of it, or more, that stand side by side."""
    for part in text.split("…"):
        words = part.split()
        for first in range(len(words)):
            for after in range(first + 2, min(first + 6, len(words)) + 1):
                piece = " ".join(words[first:after])
                yield from {each for each in (piece, piece.rstrip(",:;.")) if len(each) >= _DISTINCT}


def messages() -> list[str]:
    return _ROW.findall(PAGE.read_text())


def test_the_page_has_its_rows() -> None:
    assert len(messages()) == PAGE.read_text().count("\n| `") > 25


@pytest.mark.parametrize("message", messages())
@pytest.mark.slow
def test_a_message_of_the_page_is_one_of_the_source(message: str) -> None:
    assert any(message in text for text in texts("estimators", "smddp")), "reword the page, or the message"


@pytest.mark.parametrize("message", messages())
@pytest.mark.slow
def test_a_message_of_the_page_is_looked_for_by_a_test(message: str) -> None:
    source = set(texts("estimators", "smddp"))
    saying = {text for text in source if message.rstrip('…": ') in text}
    own = (piece for text in [message, *saying] for piece in pieces(text) if piece in of_tests())
    whole = ".*".join(re.escape(part) for part in message.rstrip("…").split("…"))
    assert re.search(whole, of_tests()) or any(not any(piece in text for text in source - saying) for piece in own), (
        "no test looks for words that only this message has"
    )
