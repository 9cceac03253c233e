"""Every program of the articles runs by the command in docs/explanation/articles.md, with the result shown there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fork_python import ForkPython
from tests.seeds.programs import PROGRAMS
from tests.seeds.running import Result, run_document
from tests.seeds.table import in_page, read_results, render


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("document", PROGRAMS)
def test_the_programs_of_a_document_print_what_the_page_says(
    document: str, tmp_path: Path, fork_python: ForkPython
) -> None:
    found, told = run_document(document, tmp_path), read_results()[document]
    assert _counts(found) == _counts(told)
    # Another processor adds in another order. Losses of 20 steps hardly differ, accuracies may by some images; and then
    # another step may be the best.
    assert _fractions(found, "loss") == pytest.approx(_fractions(told, "loss"), rel=0.02)
    assert _fractions(found, "accuracy") == pytest.approx(_fractions(told, "accuracy"), abs=0.2)


def test_the_page_shows_these_results() -> None:
    assert in_page() == render(read_results()), "run `python -m tests.seeds.table`"


def _counts(results: dict[str, Result]) -> dict[tuple[str, str], str]:
    """What must be the same on every machine: steps, ranks, names."""
    return {
        (program, name): value
        for program, result in results.items()
        for name, value in result.items()
        if not name.endswith(("loss", "accuracy", "best_step"))
    }


def _fractions(results: dict[str, Result], kind: str) -> dict[tuple[str, str], float]:
    return {
        (program, name): float(value)
        for program, result in results.items()
        for name, value in result.items()
        if name.endswith(kind)
    }
