"""The long forms: which promise each is about, how often it is done unless one says otherwise, and what does it.

What they need is imported only where they run, which is a process of their own.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.torture.outcome import Outcome

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One long form."""

    promises: tuple[str, ...]
    """What it is about; there is an outcome for each."""
    title: str
    option: str
    """What its count is called on the command line."""
    count: int
    """How often, unless one says otherwise."""
    run: Callable[[int, int, Path], tuple[Outcome, ...]]
    """Given the count, a seed, and a directory that is empty."""


def be_quiet() -> None:
    """Leave the log to those who look into it: it warns of what is done here on purpose."""
    logging.getLogger().addHandler(logging.NullHandler())


def kill_one_rank(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.kill import kill_at_random

    return (kill_at_random(kills=count, seed=seed, directory=directory),)


def kill_two_ranks(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.kill import kill_at_random

    return (kill_at_random(kills=count, seed=seed, directory=directory, ranks=2),)


def damage(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.damage import damage_at_random

    return (damage_at_random(count=count, seed=seed, directory=directory),)


def s3_faults(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.s3_faults import s3_faults

    return (s3_faults(count, seed),)


def change_ranks(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.elastic import change_ranks

    return change_ranks(interruptions=count, seed=seed, directory=directory)


def cost(count: int, _seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.cost import cost

    return (cost(count=count, directory=directory),)


@dataclass(frozen=True, slots=True)
class TestsPass:
    """A form that needs no chance: tests that try all there is, run so many times."""

    nodes: tuple[str, ...]
    """What to give to pytest."""

    def __call__(self, count: int, _seed: int, directory: Path) -> tuple[Outcome, ...]:
        """Run them."""
        passed, failures = 0, []
        for number in range(count):
            run = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", f"--basetemp={directory / str(number)}", *self.nodes],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            found = re.search(r"(\d+) passed", run.stdout)
            passed += int(found[1]) if found else 0
            if run.returncode:
                failures.append(f"{' '.join(self.nodes)}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
        return (Outcome(done=passed, unit="tests", failures=tuple(failures)),)


FORMS = (
    Form(promises=("R1",), title="SIGKILL at random", option="kills", count=200, run=kill_one_rank),
    Form(promises=("R1",), title="SIGKILL, two ranks", option="kills-of-two", count=50, run=kill_two_ranks),
    Form(promises=("R3",), title="damage to any byte", option="damages", count=5000, run=damage),
    Form(promises=("R6",), title="S3 fails", option="s3-faults", count=300, run=s3_faults),
    Form(
        promises=("R9", "R12"),
        title="other numbers of ranks, and SIGTERM",
        option="interruptions",
        count=200,
        run=change_ranks,
    ),
    Form(promises=("R11",), title="what it costs training", option="measurements", count=3, run=cost),
)
