"""R11: what a checkpoint costs training, as benchmarks/checkpoint.py measures it, against its bounds."""

from __future__ import annotations

import json
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

_BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def measure(directory: Path, *, megabytes: int, loops: int = 5, threads: int | None = None) -> dict[str, Any]:
    """Measure smddp once, in a process and an empty directory of its own.

    Args:
        directory: that.
        megabytes: of the state.
        loops: how often to save beside a loop.
        threads: what torch may compute with; None leaves it to torch.
    """
    child = subprocess.run(
        [sys.executable, "-m", "checkpointing.measure", "smddp", str(megabytes), str(directory), f"--loops={loops}"],
        cwd=_BENCHMARKS,
        env=os.environ if threads is None else os.environ | {"OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def stall(found: dict[str, Any]) -> float:
    """The best of its stalls by the best memcpy: what else the machine does is not held against it."""
    return float(min(found["stall"]) / min(found["memcpy"] + found["memcpy 1 thread"]))


def slowdown(found: dict[str, Any]) -> float:
    """The part of its steps that a loop loses while a save is under way, but for the wait for a core."""
    return 1 - float(statistics.median(found["loop on its core"]))


def cost(*, count: int, directory: Path, megabytes: int = 200) -> Outcome:
    """Measure so many times; medians count."""
    measured = []
    for number in range(count):
        (own := directory / str(number)).mkdir()
        measured.append(measure(own, megabytes=megabytes))
    stalled, slowed = (statistics.median(kind(found) for found in measured) for kind in (stall, slowdown))
    failures = []
    if stalled > LARGEST_STALL:
        failures.append(f"a save of {megabytes} MB stalls {stalled:.2f} × memcpy, more than {LARGEST_STALL}")
    if slowed > LARGEST_SLOWDOWN:
        failures.append(f"a loop beside a save loses {slowed:.1%} of its steps, more than {LARGEST_SLOWDOWN:.0%}")
    notes = f"{megabytes} MB: stall {stalled:.2f} × memcpy, loop {-slowed:+.1%} on its core"
    return Outcome(done=count, unit="measurements", notes=notes, failures=tuple(failures))
