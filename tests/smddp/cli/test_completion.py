"""``smddp completion``: what the function offers to the shell for which it was printed."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from smddp.cli.app import app


@pytest.fixture(scope="module")
def function() -> str:
    return CliRunner().invoke(app, ["completion", "bash"]).stdout


def completed(function: str, *words: str) -> list[str]:
    """What bash offers for the last word."""
    quoted = " ".join(f'"{word}"' for word in words)
    line = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _smddp; echo ${{COMPREPLY[@]}}"
    shown = subprocess.run(["bash", "-c", f"{function}{line}"], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stderr == ""
    return shown.stdout.split()


def test_commands_are_completed_also_those_of_other_packages(function: str) -> None:
    assert completed(function, "smddp", "c") == ["checkpoints", "collectives", "completion", "console"]
    assert completed(function, "smddp", "rehe") == ["rehearse"]


def test_commands_of_a_command_are_completed(function: str) -> None:
    assert completed(function, "smddp", "checkpoints", "ver") == ["verify"]
    assert completed(function, "smddp", "local", "") == ["up", "env", "chaos", "run"]


def test_options_are_those_of_the_command(function: str) -> None:
    assert completed(function, "smddp", "run", "--node") == ["--nodes", "--node-rank"]
    assert completed(function, "smddp", "--v") == ["--version"]
    assert "--help" in completed(function, "smddp", "checkpoints", "ls", "--")


def test_files_are_left_to_the_shell(function: str) -> None:
    assert completed(function, "smddp", "run", "") == []
    assert "complete -o default -F _smddp smddp" in function


def test_an_argument_with_the_name_of_a_command_changes_nothing(function: str) -> None:
    assert completed(function, "smddp", "demo", "run", "--out") == ["--output"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_the_function_for_zsh_is_read_by_zsh() -> None:
    function = CliRunner().invoke(app, ["completion", "zsh"]).stdout
    subprocess.run(["zsh", "-f", "-c", f"{function}whence _smddp"], check=True, timeout=60)
