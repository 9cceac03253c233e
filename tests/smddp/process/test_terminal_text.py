"""The parts of a live line."""

from __future__ import annotations

from smddp.process.terminal_text import counted


def test_one_thing_has_no_plural() -> None:
    assert [counted(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [counted(number, "process", "processes") for number in (1, 2)] == ["1 process", "2 processes"]
