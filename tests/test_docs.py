"""Every code block of README and docs is run: what a page says, works.

A page's blocks run in order in a directory that looks like a checkout. A Python block that begins with a comment
naming a file (``# train.py``) is written to that file; any other runs on its own. Bash blocks run under
``set -euo pipefail``. AWS calls go to a local platform. Output is shown in ``text`` blocks, which are not run. A page
that holds the line ``<!-- needs: docker -->`` is run where there is what that marker asks for; what stands before the
marker is run everywhere, and once.
"""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from estimators.local import LocalSageMaker
from tests.fork_python import ForkPython
from tests.slurm import SlurmCluster

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_NEEDS = re.compile(r"^<!-- needs: (\w+) -->$", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STARTS_JOB = re.compile(r"smddp\.run\(|run_call\(|hydra\.main")
_FILE = re.compile(r"# ([\w/-]+\.py)\n")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    return [Block(found[1], found[2], text[: found.start()].count("\n") + 1) for found in _BLOCK.finditer(text)]


def runs() -> Iterator[Any]:
    """Each page with what it needs, and alone what stands before its marker, if that has blocks."""
    for page in PAGES:
        text, name = page.read_text(), str(page.relative_to(ROOT))
        before, marker, _ = text.partition("<!-- needs:")
        if marker and blocks(before):
            yield pytest.param(page, before, id=f"{name}, its beginning")
        yield pytest.param(page, text, id=name, marks=[getattr(pytest.mark, need) for need in _NEEDS.findall(text)])


@pytest.fixture(scope="module")
def environment(fork_server: ForkPython) -> Iterator[dict[str, str]]:
    with fork_server.in_use(), LocalSageMaker() as platform:
        path = f"{fork_server.programs}{os.pathsep}{os.environ['PATH']}"
        yield os.environ | platform.environment | {"PATH": path, "COLUMNS": "120"}


@dataclass
class Page:
    """A page's directory, and how many of its blocks have been run in it."""

    directory: Path
    done: int = 0


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkPython) -> Callable[[Path], Page]:
    """Gives a page, begun where the run of its beginning left it."""
    begun: dict[Path, Page] = {}

    def page_of(path: Path) -> Page:
        if path not in begun:
            begun[path] = Page(tmp_path_factory.mktemp("page"))
            for entry in ROOT.iterdir():
                if entry.name not in {"runs", ".git", ".venv"}:
                    (begun[path].directory / entry.name).symlink_to(entry)
            (begun[path].directory / ".venv").symlink_to(fork_server.environment)
        return begun[path]

    return page_of


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize(("page", "text"), list(runs()))
def test_every_block_runs(
    page: Path,
    text: str,
    started: Callable[[Path], Page],
    environment: dict[str, str],
    request: pytest.FixtureRequest,
) -> None:
    if "slurm" in _NEEDS.findall(text):
        slurm: SlurmCluster = request.getfixturevalue("slurm")
        environment = environment | {"PATH": f"{slurm.programs}{os.pathsep}{environment['PATH']}"}
    if (ROOT / ".venv").is_dir():
        # Else `make demo` would install from the directory below, and leave an installation that leads nowhere.
        fresh = subprocess.run(["make", "--question", ".venv/demo.stamp"], cwd=ROOT, capture_output=True, check=False)
        assert fresh.returncode == 0, ".venv is older than pyproject.toml: run `make .venv/dev.stamp` first"
    run = started(page)
    for block in blocks(text)[run.done :]:
        where = f"{page.relative_to(ROOT)}:{block.line}"
        named = _FILE.match(block.text)
        if block.language != "text":
            assert block.language in {"python", "bash"}, f"{where}: language {block.language!r} is not run"
        if named and block.language == "python":
            (run.directory / named[1]).write_text(block.text)
        elif block.language != "text":
            command = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
            result = subprocess.run(
                [*command, block.text],
                cwd=run.directory,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
                stdin=subprocess.DEVNULL,
            )
            told = f"{result.stdout}\n{result.stderr}"
            assert result.returncode == 0, f"{where} ended with {result.returncode}:\n{told}"
        run.done += 1


def _scripts() -> Iterator[Any]:
    for page in PAGES:
        for block in blocks(page.read_text()):
            if block.language == "python":
                yield pytest.param(block.text, id=f"{page.relative_to(ROOT)}:{block.line}")
    for room in ("entrypoints", "smddp", "estimators"):
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text()
            if room == "entrypoints":
                yield pytest.param(text, id=str(path.relative_to(ROOT)))
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    for number, example in enumerate(_examples(ast.get_docstring(node) or "")):
                        name = getattr(node, "name", "module")
                        yield pytest.param(example, id=f"{path.relative_to(ROOT)}:{name}:{number}")


def _examples(docstring: str) -> Iterator[str]:
    """Yield the code of a docstring: each indented block after a colon, and all lines after ``>>>``."""
    for found in re.finditer(r":\n\n((?:[ ]+.*\n|\n)+)", docstring + "\n"):
        yield textwrap.dedent(found[1])
    if lines := doctest.DocTestParser().get_examples(docstring):
        yield "".join(line.source for line in lines)


def _unguarded(script: str) -> list[str]:
    """Return the calls that begin a job when a process imports the script."""
    try:
        body = ast.parse(script).body
    except SyntaxError:  # no script: a command, or a piece of code
        return []
    starters = {"smddp.run", "run_call"}
    for node in body:
        if isinstance(node, ast.FunctionDef) and any("hydra.main" in ast.unparse(each) for each in node.decorator_list):
            starters.add(node.name)
    run_on_import = [
        node
        for node in body
        if not isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not (isinstance(node, ast.If) and "__name__" in ast.unparse(node.test))
    ]
    calls = [call for node in run_on_import for call in ast.walk(node) if isinstance(call, ast.Call)]
    return [ast.unparse(call) for call in calls if ast.unparse(call.func) in starters]


@pytest.mark.parametrize("script", [each for each in _scripts() if _STARTS_JOB.search(each.values[0])])
def test_every_script_guards_the_call_that_begins_its_job(script: str) -> None:
    """Workers that are not forked import the script: it would begin the job again in each."""
    assert not _unguarded(script)


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in [
            *PAGES,
            *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "llms.txt", "benchmarks/RESULTS.md")),
        ]
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken
