from __future__ import annotations

import io

import pytest

from estimators.local_mode.output import TAIL_LINES, Output


def test_each_line_is_shown_with_its_host(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(["algo-1", "algo-2"], shows=True)
    output.follow(
        io.BytesIO(
            b"Attaching to x_algo-1-abcde_1, x_algo-2-abcde_1\n"
            b"x_algo-1-abcde_1  | loss 0.5\n"
            b"algo-2-abcde-1  | caf\xc3\xa9 \xff\n"
            b"algo-1-abcde-1  |\n"
        )
    )
    assert capsys.readouterr().out == "algo-1 | loss 0.5\nalgo-2 | café \ufffd\nalgo-1 | \n"
    assert output.tails == {"algo-1": "loss 0.5\n", "algo-2": "café \ufffd"}


def test_of_a_progress_bar_its_last_state_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(["algo-1"], shows=True)
    output.follow(io.BytesIO(b"algo-1-abcde-1  | \r 10%\r 50%\r100%\r\nalgo-1-abcde-1  | done\n"))
    assert capsys.readouterr().out == "algo-1 | 100%\nalgo-1 | done\n"


def test_only_last_lines_are_kept_and_none_shown_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(["algo-1"], shows=False)
    output.follow(io.BytesIO(b"".join(b"algo-1-abcde-1  | %d\n" % number for number in range(100))))
    assert output.tails["algo-1"].splitlines() == [str(number) for number in range(100 - TAIL_LINES, 100)]
    assert capsys.readouterr().out == ""
