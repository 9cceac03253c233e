"""What a terminal or a log shows of text, paths and counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from smddp.display_text import (
    as_memory,
    counted,
    describe,
    shown_error,
    shown_line,
    shown_name,
    shown_names,
    shown_path,
    shown_text,
    with_shown_paths,
)


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


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/me/project/runs/a", "runs/a"),
        ("/home/me/project-2/runs", "~/project-2/runs"),
        ("/home/mean/runs", "/home/mean/runs"),
        ("/opt/ml/model", "/opt/ml/model"),
        ("s3://bucket//a", "s3://bucket//a"),
    ],
)
def test_a_path_is_shown_from_the_nearest_directory(path: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: Path("/home/me/project"))
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert shown_path(path) == shown


def test_a_removed_working_directory_and_the_root_shorten_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/")
    monkeypatch.chdir("/")
    assert shown_path("/opt/ml") == "/opt/ml"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert shown_path("/opt/ml") == "/opt/ml"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no directory /home/me/project/runs/a.", "no directory runs/a."),
        ("'/home/me/project/a.npz' and /home/me/b: absent", "'a.npz' and ~/b: absent"),
        ("(looked in /home/me/project).", "(looked in /home/me/project)."),
        ("SM_CHANNEL_A=/home/me/a, /opt/ml/model", "SM_CHANNEL_A=~/a, /opt/ml/model"),
        ("cat '/home/me/a b'", "cat '/home/me/a b'"),
        ("s3://home/me/project/a, file:///home/me/a, x/home/me/a, 1/2", None),
    ],
)
def test_the_paths_of_a_message_are_shown_in_the_same_way(
    text: str, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: Path("/home/me/project"))
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert with_shown_paths(text) == (text if shown is None else shown)


def test_one_thing_has_no_plural() -> None:
    assert [counted(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [counted(number, "process", "processes") for number in (1, 2)] == ["1 process", "2 processes"]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (100, "100 B"), (1024, "1 KiB"), (1100, "1.1 KiB"), (3 * 2**30, "3 GiB"), (2**40, "1024 GiB")],
)
def test_memory_has_the_units_of_which_each_has_1024_of_the_one_before(size: int, text: str) -> None:
    assert as_memory(size) == text


def test_a_list_of_names_ends_between_names() -> None:
    names = [f"base_model.layers.{number}.attention.lora_A.weight" for number in range(7)]
    assert shown_names(names) == f"{', '.join(names[:5])} and 2 more"
    assert shown_names(iter(names[:5])) == ", ".join(names[:5])
    assert shown_names(range(9), most=8) == "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"
    assert shown_names([]) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "a dict"),
        (object(), "an object"),
        (3, "3"),
        ("x" * 200, "'" + "x" * 99),
        (None, "None"),
        (int, "the class int"),
    ],
)
def test_a_value_is_described_in_a_few_words(value: object, text: str) -> None:
    assert describe(value) == text
