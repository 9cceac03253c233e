"""Files that a release carries: llms.txt is current, CITATION.cff and the changelog have the version."""

from __future__ import annotations

import re

import yaml

from smddp import __version__
from tests.llms_txt import FILE, ROOT, render


def test_llms_txt_is_current() -> None:
    assert FILE.read_text() == render(), "run `python -m tests.llms_txt`"


def test_llms_txt_names_pages_that_are_there_with_a_sentence_each() -> None:
    lines = re.findall(r"^- \[(.+)\]\((\S+)\): (.+)$", render(), re.MULTILINE)
    assert len(lines) == len(list((ROOT / "docs").rglob("*.md")))
    assert [page for _, page, _ in lines if not (ROOT / page).is_file()] == []
    assert [page for _, page, sentence in lines if len(sentence) < 20 or "```" in sentence] == []


def test_citation_has_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_changelog_begins_with_what_is_unreleased_and_has_the_version() -> None:
    versions = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[:2] == ["Unreleased", __version__]
    links = re.findall(r"\bdocs/[\w/.-]+\.md\b", (ROOT / "CHANGELOG.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []
