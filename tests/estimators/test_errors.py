"""Errors show what the platform says, in lines that people read."""

from __future__ import annotations

import pytest

from estimators.errors import shown_reason


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (
            "AlgorithmError: bad\n  train.py:3 main, exit code: 1",
            "AlgorithmError: bad\n  train.py:3 main\nexit code: 1",
        ),
        ("AlgorithmError: bad, exit code: 1", "AlgorithmError: bad, exit code: 1"),
        ("InternalServerError: \x1b[2Jalgo-2 was lost.", "InternalServerError: algo-2 was lost."),
        ("AlgorithmError: a\nb, exit code: 4; ClientError: c", "AlgorithmError: a\nb, exit code: 4; ClientError: c"),
    ],
)
def test_the_exit_code_of_a_reason_of_several_lines_has_its_own_line(reason: str, shown: str) -> None:
    assert shown_reason(reason) == shown
