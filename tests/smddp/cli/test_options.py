"""A number that an option does not take is told with the range, in the same words by every command."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import estimators
import smddp
from smddp.cli.app import app


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--processes-per-node", "two", "x.py"], "'--processes-per-node': two: give a whole number."),
        (["run", "--timeout", "nan", "x.py"], "'--timeout': nan: give a number."),
        (["collectives", "--processes-per-node", "0"], "'--processes-per-node': 0: give a whole number of 1 or more."),
        (["collectives", "--seconds", "900"], "'--seconds': 900: give a number from 0 to 60."),
        (["console", "--port", "99999"], "'--port': 99999: give a whole number from 0 to 65535."),
        (["checkpoints", "prune", "--keep-last", "1.5", "x"], "'--keep-last': 1.5: give a whole number."),
        (["plan", "--max-cost", "x", "submit.py"], "'--max-cost': x: give a number."),
    ],
)
def test_a_wrong_number_is_shown_with_the_allowed_range(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert f"Error: Invalid value for {said}\n" in result.output


@pytest.mark.parametrize("root", [smddp, estimators], ids=lambda root: root.__name__)
def test_no_option_leaves_numbers_to_the_parser_s_own_words(root: ModuleType) -> None:
    by_typer = re.compile(r"\b(?:int|float)(?: \| None)?,\s*typer\.(?:Option|Argument)\(")
    files = Path(root.__path__[0]).rglob("*.py")
    assert [file.name for file in files if by_typer.search(file.read_text(encoding="utf-8"))] == []
