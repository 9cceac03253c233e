"""llms.txt, the documentation's index for language models, from the navigation: ``python -m tests.llms_txt`` writes it.

The format is that of https://llmstxt.org: a title, a summary, and for each page a link with its first sentence.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
FILE = ROOT / "llms.txt"
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_NO_PROSE = re.compile(r"[#!<|:>-]|\d+\.\s|$")
_END_OF_SENTENCE = re.compile(r"(?<=[.:])\s(?=[A-Z`\[]|$)")


def render() -> str:
    """The file."""
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}"]
    pages: list[str] = []
    for entry in project["nav"]:
        for title, value in entry.items():
            if isinstance(value, str):
                pages.append(_line(title, value))
            else:
                lines += ["", f"## {title}", "", *(_line(*page) for page in _pages(value))]
    return "\n".join([*lines[:3], "", *pages, *lines[3:], ""])


def _pages(entries: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        for title, value in entry.items():
            if isinstance(value, str):
                yield title, value
            else:
                yield from _pages(value)


def _line(title: str, page: str) -> str:
    return f"- [{title}](docs/{page}): {_first_sentence((ROOT / 'docs' / page).read_text())}"


def _first_sentence(text: str) -> str:
    """The first sentence of a page's first paragraph, without links, code blocks and tables."""
    paragraphs = re.split(r"\n\s*\n", _BLOCK.sub("", text))
    prose = next(each for each in paragraphs if not _NO_PROSE.match(each.strip()))
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    return _END_OF_SENTENCE.split(plain)[0].rstrip(":")


if __name__ == "__main__":
    FILE.write_text(render())
