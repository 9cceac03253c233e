"""R11: what a checkpoint costs training, as benchmarks/checkpoint.py measures it, against its bounds."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.torture.outcome import Outcome

LARGEST_STALL = 1.2
"""Times memcpy, the faster of one thread's and torch's."""
LARGEST_SLOWDOWN = 0.05
"""The part of its steps that a loop may lose to a save, more than it loses to a plain write of the same bytes."""
MOST_STALL_DOUBT = 0.2
"""Times memcpy: with more, a stall that is just allowed can't be told from one of no more than the copy itself."""
MOST_SLOWDOWN_DOUBT = LARGEST_SLOWDOWN / 2

_BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
_LOOPS = 25
"""A process; one loop alone may be a tenth faster or slower than the next."""


def measure(
    directory: Path, *, megabytes: int, name: str = "smddp", loops: int = _LOOPS, threads: int | None = None
) -> dict[str, Any]:
    """Measure one contender once, in a process and an empty directory of its own.

    Args:
        directory: Where it saves.
        megabytes: The size of the state.
        name: The contender's name, one of benchmarks/checkpoint.py.
        loops: How often it saves beside a loop.
        threads: How many threads torch may use; None leaves it to torch.
    """
    child = subprocess.run(
        [sys.executable, "-m", "checkpointing.measure", name, str(megabytes), str(directory), f"--loops={loops}"],
        cwd=_BENCHMARKS,
        env=os.environ if threads is None else os.environ | {"OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def cost(*, count: int, directory: Path, megabytes: int = 200) -> Outcome:
    """Measure smddp and a plain write so many times, in turns.

    The medians over all of them count, and break a bound only where their whole 95 % intervals lie above it: a shared
    machine may lend more or less of itself from one second to the next. Where an interval is too wide to judge by, that
    is a failure, too.
    """
    saves, writes = [], []
    for number in range(count):
        for name, found in ("smddp", saves), ("raw write", writes):
            (own := directory / f"{number} {name}").mkdir()
            found.append(measure(own, megabytes=megabytes, name=name))
    stall = _Median(_stalls(saves))
    saving, writing = (
        _Median([1 - each for found in kind for each in found["loop on its core"]]) for kind in (saves, writes)
    )
    more, doubt = saving.value - writing.value, math.hypot(saving.doubt, writing.doubt)
    failures = []
    if stall.value - stall.doubt > LARGEST_STALL:
        failures.append(f"a save of {megabytes} MB stalls {stall.value:.2f} × memcpy, more than {LARGEST_STALL}")
    elif stall.value + stall.doubt > LARGEST_STALL and stall.doubt > MOST_STALL_DOUBT:
        failures.append(
            f"the machine is too busy to judge: a save of {megabytes} MB stalls {stall.value:.2f} ± {stall.doubt:.2f} "
            f"× memcpy, and ± {MOST_STALL_DOUBT} is the most"
        )
    if more - doubt > LARGEST_SLOWDOWN:
        failures.append(
            f"a loop beside a save loses {more:.1%} of its steps more than beside a plain write, and "
            f"{LARGEST_SLOWDOWN:.0%} is allowed"
        )
    elif more + doubt > LARGEST_SLOWDOWN and doubt > MOST_SLOWDOWN_DOUBT:
        failures.append(
            f"the machine is too busy to judge: a loop beside a save loses {more:.1%} ± {doubt:.1%} of its steps more "
            f"than beside a plain write, and ± {MOST_SLOWDOWN_DOUBT:.1%} is the most"
        )
    notes = (
        f"{megabytes} MB: stall {stall.value:.2f} ± {stall.doubt:.2f} × memcpy; steps of a loop on its core "
        f"{-saving.value:+.1%}, beside a plain write {-writing.value:+.1%} (± {doubt:.1%})"
    )
    return Outcome(done=count, unit="measurements", notes=notes, failures=tuple(failures))


def _stalls(measured: list[dict[str, Any]]) -> list[float]:
    """Each stall by the memcpy of its round, of the faster kind: a neighbour takes the memory from both."""
    copies = [[each for found in measured for each in found[kind]] for kind in ("memcpy", "memcpy 1 thread")]
    stalls = (each for found in measured for each in found["stall"])
    return [stall / copy for stall, copy in zip(stalls, min(copies, key=statistics.median), strict=True)]


class _Median:
    """A median, and how far the true one may lie from it: half of its 95 % interval (McGill, Tukey and Larsen 1978)."""

    def __init__(self, values: list[float]) -> None:
        quartiles = statistics.quantiles(values, n=4)
        self.value = quartiles[1]
        self.doubt = 1.57 * (quartiles[2] - quartiles[0]) / math.sqrt(len(values))
