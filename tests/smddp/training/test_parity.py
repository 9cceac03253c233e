"""The Trainer's arithmetic is that of a loop by hand, bit by bit."""

from __future__ import annotations

import itertools
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "parity_program.py"
CASES: list[tuple[Any, ...]] = runpy.run_path(str(PROGRAM))["CASES"]


def test_each_value_of_an_option_meets_each_of_every_other_one() -> None:
    for (first, ones), (second, others) in itertools.combinations(enumerate(zip(*CASES, strict=True)), 2):
        met = {(row[first], row[second]) for row in CASES}
        assert met == set(itertools.product(set(ones), set(others)))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_trainer_stopped_or_not_has_the_bits_of_a_loop_by_hand(
    ranks: int, run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    ended = run_ranks(PROGRAM.read_text(), [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * ranks)

    assert [rank.code for rank in ended] == [0] * ranks, ended
    for rank in ended:
        told = [json.loads(line) for line in rank.printed.splitlines()]
        assert len(told) == len(CASES)
        assert [case for case in told if case["by_trainer"] or case["resumed"]] == []
        skipped = [case["skipped"] for case in told if case["case"].startswith("fp16")]
        assert all(0 < each < 12 for each in skipped), skipped  # fp16 both skips and takes steps
