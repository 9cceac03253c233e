"""`make docs`: the site builds without a warning, nothing in it comes from elsewhere, and each page can be found."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import smddp
import smddp.checkpoint
import smddp.data.pipes
import smddp.data.shards
import smddp.metrics

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
NAVIGATION = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
_FETCHED = re.compile(r'<(?:script|img|iframe)[^>]* src="https?://|<link[^>]* href="https?://[^>]*stylesheet')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy: the tree stays as it is."""
    if sys.version_info < (3, 11):
        pytest.skip("Zensical needs Python 3.11")
    directory = tmp_path_factory.mktemp("site")
    for name in ("docs", "smddp", "estimators"):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "zensical.toml", directory)
    command = [Path(sys.prefix) / "bin" / "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=100)
    assert built.returncode == 0, built.stdout + built.stderr
    return directory / "site"


def pages(entries: Any) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from pages(value)


def test_the_navigation_has_each_page_once() -> None:
    written = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
    assert sorted(pages(NAVIGATION)) == written


def test_a_page_names_files_of_the_tree_that_are_there() -> None:
    named = re.compile(r"`((?:tests|smddp|estimators|entrypoints|benchmarks|docker)/[\w/.-]+\.\w+)`")
    found = {page: named.findall(page.read_text()) for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]}
    assert sum(map(len, found.values())) > 20
    assert [f"{page}: {name}" for page, names in found.items() for name in names if not (ROOT / name).exists()] == []


@pytest.mark.slow
def test_a_page_shows_what_the_docstrings_say_and_fetches_nothing(site: Path) -> None:
    reference = (site / "reference" / "smddp" / "index.html").read_text()
    assert "SIGTERM" in reference
    assert "Otherwise. The code is 0 after success" in reference
    fetched = {str(page): _FETCHED.findall(page.read_text()) for page in site.rglob("*.html")}
    assert len(fetched) > 25
    assert not any(fetched.values()), fetched


def test_the_reference_has_each_public_name() -> None:
    shown = "".join((ROOT / "docs" / "reference" / page).read_text() for page in ("smddp.md", "rooms.md"))
    rooms = (smddp, smddp.metrics, smddp.checkpoint, smddp.data.shards, smddp.data.pipes)
    public = {name for room in rooms for name in room.__all__} - {"__version__", "Status"}  # an alias of three texts
    assert [name for name in sorted(public) if f".{name}\n" not in shown] == []


def test_the_way_of_one_save_names_what_the_code_has() -> None:
    page = (ROOT / "docs" / "explanation" / "one-save.md").read_text()
    source = "".join((ROOT / name).read_text() for name in set(re.findall(r"`(smddp/[\w/]+\.py)`", page)))
    named = re.findall(r"`([A-Z]\w+)\.([a-z]\w+)`", page)
    assert len(named) > 5
    assert [each for each in named if not re.search(rf"class {each[0]}\b[\s\S]*def {each[1]}\(", source)] == []
