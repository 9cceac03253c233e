"""Options have one name: an abbreviation would mean another option, or an error, as soon as there is one more.

A launcher even takes an option of the script for an abbreviation of its own: ``launcher train.py --n 1``.
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

from smddp.launch import mpi_host, mpirun, torchrun
from tests.commands_page import PAGE, render

ROOT = Path(__file__).parents[1]
ROOMS = ("smddp", "estimators", "benchmarks", "entrypoints", "docker", "tests")


@pytest.mark.slow
def test_no_parser_takes_abbreviations() -> None:
    parsers = {
        f"{path.relative_to(ROOT)}:{call.lineno}": call
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and _makes_a_parser(call.func)
    }
    assert parsers
    lenient = [place for place, call in parsers.items() if not _refuses_abbreviations(call)]
    assert not lenient, f"give these parsers allow_abbrev=False: {', '.join(lenient)}"


@pytest.mark.parametrize("launcher", [torchrun, mpirun, mpi_host], ids=lambda launcher: launcher.__name__)
def test_a_launcher_starts_without_docstrings(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONOPTIMIZE=2 removes them."""
    monkeypatch.setattr(launcher, "__doc__", None)
    with pytest.raises(SystemExit) as ended:
        launcher.main(["--help"])
    assert ended.value.code == 0


def test_the_reference_shows_each_command_and_option() -> None:
    assert PAGE.read_text() == render(), "run `python -m tests.commands_page`"


def _makes_a_parser(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return name in {"ArgumentParser", "add_parser"}  # a subcommand's does not follow the whole program's


def _refuses_abbreviations(call: ast.Call) -> bool:
    return any(each.arg == "allow_abbrev" and ast.unparse(each.value) == "False" for each in call.keywords)
