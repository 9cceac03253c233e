"""The help: its panels, and how little it imports."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from smddp.cli.app import app

SLOW = {"torch", "numpy", "boto3", "sagemaker", "moto", "rich", "typer.rich_utils", "pydantic", "packaging"}
OF_DOCTOR_ALONE = {"smddp.cli.doctor", "smddp.cli.goodput", "importlib.metadata"}


def loaded(*arguments: str) -> set[str]:
    """The modules that a new Python has after a command."""
    program = "import sys\nfrom smddp.cli import main\ntry:\n main()\nfinally:\n print(*sys.modules, file=sys.stderr)"
    shown = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return set(shown.stderr.split())


@pytest.mark.parametrize(
    "command",
    ["", "run", "plan", "local", "local up", "rehearse", "demo", "doctor", "checkpoints", "checkpoints ls", "env"],
)
def test_a_help_imports_nothing_slow(command: str) -> None:
    assert not loaded(*command.split(), "--help") & SLOW


def test_the_completion_imports_nothing_slow() -> None:
    assert not loaded("completion", "bash") & SLOW - {"pydantic"}  # it converts the name of the shell


def test_the_help_of_a_command_loads_no_other_command() -> None:
    assert not loaded("run", "--help") & OF_DOCTOR_ALONE


def shown(*arguments: str, columns: int = 80, **variables: str) -> Result:
    return CliRunner(env={"COLUMNS": str(columns), **variables}).invoke(app, arguments, color=True)


@pytest.mark.parametrize("columns", [10, 40, 79, 80, 200])
@pytest.mark.parametrize("command", ["", "run", "export", "local chaos", "checkpoints"])
def test_a_panel_is_as_wide_as_the_terminal(command: str, columns: int) -> None:
    lines = shown(*command.split(), "--help", columns=columns, NO_COLOR="1").stdout.splitlines()
    panels = [line for line in lines if line[:1] in tuple("╭│╰")]
    assert panels
    assert {len(line) for line in panels} == {max(columns, 40)}
    assert all(line[-1] in "╮│╯" for line in panels)


def test_a_list_of_commands_has_the_whole_first_paragraph_of_each() -> None:
    words = " ".join(shown("checkpoints", "--help", NO_COLOR="1").stdout.replace("│", " ").split())
    assert "prune Remove the checkpoints that no rule keeps. The newest valid one always stays." in words


def test_colors_are_left_out_where_nobody_wants_them() -> None:
    assert "\x1b[" in shown("run", "--help").stdout
    assert "\x1b[" not in shown("run", "--help", NO_COLOR="1").stdout


def test_a_terminal_without_unicode_gets_panels_of_ascii() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "smddp.cli", "run", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert b"+- Options -" in shown.stdout
