"""Whether a job proves its cell: who started its ranks, as the script says at its end, and that its loss is everyone's.

All jobs of one test run with the same number of ranks must come to the same loss, to the last bit, whatever started
them and whatever happened to them on the way: the first writes it down for those that follow, in any process.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docker.cells import EXPECTED, Cell, Outcome


@dataclass(frozen=True)
class Proof:
    """What the jobs of this test run agree on."""

    directory: Path
    """One for all processes of the run."""

    @classmethod
    def of_this_run(cls, factory: pytest.TempPathFactory) -> Proof:
        """The one that every process of pytest-xdist gets."""
        own = factory.getbasetemp()
        return cls(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)

    def check(self, cell: Cell, log: str) -> None:
        """Compare what the job of a cell said with the page's table, and its loss with the other jobs'."""
        outcome, loss = outcome_in(log)
        assert outcome == EXPECTED[cell], cell
        with (self.directory / f"loss-of-{outcome.ranks}-ranks").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            first = file.read()
            if not first:
                file.write(f"{loss} {cell}")
        assert loss == (first or loss).split()[0], f"{cell}: {loss}; before: {first}"


def outcome_in(log: str) -> tuple[Outcome, str]:
    """What the script says of itself at its end, and the loss in hexadecimal: every bit."""
    told = [line.partition("digits {")[2] for line in log.splitlines() if "digits {" in line]
    assert len(told) == 1, f"{len(told)} ranks told of the end:\n{log}"
    # Docker carries the two streams apart: what was written to the other may follow in the same line.
    fields, _ = json.JSONDecoder().raw_decode("{" + told[0])
    return Outcome(**{name: fields[name] for name in ("launcher", "ranks", "backend")}), fields["loss"]
