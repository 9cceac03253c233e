"""What others have written, as a terminal may show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from smddp.safe_text import shown_error, shown_line, shown_name, shown_text


@pytest.mark.parametrize(
    ("line", "text"),
    [("a", "a"), ("a\r\n", "a"), ("1\r2\r3", "3"), ("1\r2\r", "2"), ("", ""), ("\r", ""), ("1\r\r", "1")],
)
def test_of_a_progress_bar_the_last_state_is_shown(line: str, text: str) -> None:
    assert shown_line(line) == text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\x1b[2J\x1b[1;1Hb", "ab"),
        ("a\x1b]0;title\x07b\x1b]52;c;Y2xpcA==\x1b\\c", "abc"),
        ("a\x1b]0;without an end", "a0;without an end"),
        ("a\x1bcb\x1b(Bc", "abc"),
        ("a\x1b", "a"),
        ("\x00a\x07\x08\x7f\x9bb", "ab"),
        ("tab\tstays, größe – ✓ too", "tab\tstays, größe – ✓ too"),
        ("50%\r100%\r\x1b[K", "100%"),
    ],
)
def test_a_line_has_no_power_over_the_terminal(line: str, text: str) -> None:
    assert shown_line(line) == text


def test_a_message_keeps_its_lines_and_none_covers_another() -> None:
    assert shown_text("the \x1b[31mreason\x1b[0m\r\nof it\rall is well\x1b[2K\n\x9d0;title\x07") == (
        "the reason\nof it\nall is well\n0;title"
    )


def test_a_name_is_one_line_and_keeps_what_it_is() -> None:
    assert shown_name("lo\x1b[2Jss\n größe \u202e") == r"lo\x1b[2Jss\n größe \u202e"


def test_an_error_has_short_paths_and_no_control_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_error(f"no \x1b[31mcode\x1b[0m in {tmp_path}/job/train.py.") == "no code in job/train.py."
