"""A job's log as a person reads it."""

from __future__ import annotations

import builtins
import io
import os
import pty
from contextlib import redirect_stdout
from datetime import datetime, timezone

import pytest

from estimators.log_view import LogView

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def show() -> None:
    view = LogView()
    view.show_name("digits-1")
    view.show_status(NOON, "Training", "Training is on")
    view.show_line("algo-1", "one [not markup] :smile:")
    view.show_line("algo-2", "  0%|  | 0/2\r 50%|# | 1/2\r100%|##| 2/2\n")


def shown(text: str) -> list[str]:
    return [line.partition(" ")[2] if line[2] == ":" else line for line in text.splitlines()]


def test_a_file_gets_plain_lines() -> None:
    file = io.StringIO()
    with redirect_stdout(file):
        show()
    assert shown(file.getvalue()) == [
        "training job digits-1",
        "Training: Training is on",
        "algo-1 | one [not markup] :smile:",
        "algo-2 | 100%|##| 2/2",
    ]


def test_a_notebook_gets_one_stream_with_a_terminals_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    stream = io.StringIO()
    with redirect_stdout(stream):
        show()
    lines = stream.getvalue().splitlines()
    assert lines[2] == "\x1b[36malgo-1 | \x1b[0mone [not markup] :smile:"


def test_a_long_line_is_wrapped_by_the_terminal_alone() -> None:
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as screen, redirect_stdout(screen):
        LogView().show_line("algo-1", "x" * 300)
        screen.flush()
        assert os.read(controller, 4096).decode().count("\n") == 1
    os.close(controller)


def test_a_reason_has_no_power_over_the_terminal() -> None:
    file = io.StringIO()
    with redirect_stdout(file):
        LogView().show_status(NOON, "Failed", "ValueError: \x1b[2J")
    assert shown(file.getvalue()) == ["Failed: ValueError: "]


def test_a_host_has_no_power_over_the_terminal() -> None:
    file = io.StringIO()
    with redirect_stdout(file):
        LogView().show_line("algo-1\x1b[2J", "one")
    assert file.getvalue() == "algo-1 | one\n"
