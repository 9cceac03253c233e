"""How R11 judges what it has measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.torture.cost import cost


@pytest.mark.parametrize(
    ("stalls", "steps", "failures"),
    [
        ((1.1, 1.15, 1.2), (0.95, 0.96, 0.97), []),
        ((1.4, 1.45, 1.5), (0.8, 0.81, 0.82), ["a save of 200 MB stalls", "a loop beside a save loses"]),
        ((0.5, 1.1, 9), (0.5, 0.96, 1.5), ["the machine is too busy to judge: a save", "the machine is too busy"]),
        ((0.1, 0.15, 0.9), (1.2, 1.5, 1.6), []),
    ],
    ids=["within", "above", "in doubt", "within for all its doubt"],
)
def test_what_is_measured_passes_only_if_it_can_be_judged(
    stalls: Sequence[float],
    steps: Sequence[float],
    failures: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(_directory: Path, *, megabytes: int, name: str) -> dict[str, Any]:
        copies = [1.0] * len(stalls) * 10
        loop = [*steps] * 10 if name == "smddp" else copies
        return {"stall": [*stalls] * 10, "memcpy": copies, "memcpy 1 thread": copies, "loop on its core": loop}

    monkeypatch.setattr("tests.torture.cost.measure", measured)
    found = cost(count=3, directory=tmp_path).failures
    assert [text[: len(start)] for text, start in zip(found, failures, strict=True)] == list(failures)
