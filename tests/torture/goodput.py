"""R20: the parts of the goodput ledger add up to the wall time of a run, through stops, kills, hangs and restarts.

Each run is a job of 2 ranks, started by ``smddp run``, whose Pythons are forked. It has several lives; how each ends is
drawn by the seed. The job's journals say what happened when: how long the run took, its attempts, its steps, and what
it spent on data and evaluation on purpose. The ledger must say the same.

    python -m tests.torture.goodput [--lives 50] [--seed 0] [--together 2] [--after 2]
        [--largest-error 0.01]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.goodput import Account, read_account
from smddp.goodput.account import AttemptAccount
from tests.torture.children import read_journal
from tests.torture.hangs import forked_program
from tests.torture.outcome import Outcome

JOB = Path(__file__).with_name("goodput_job.py")
_RANKS = 2
_LIVES_A_RUN = 10
_TOGETHER = 2
_AFTER = 2.0
"""The watchdog's bound in seconds. A rank that gets no core for so long counts as one that hangs."""
_END_SECONDS = 240.0
_LARGEST_ERROR = 0.01
"""Of the wall time. The client of a forked Python takes up to 0.4 s before the launcher begins, so a run of few lives
needs a larger one."""
_FIRST_WRITE_SECONDS = 0.5
"""An attempt that was killed sooner after its resume may have no record."""
_ENDS = ("stop", "kill of all ranks", "kill of a rank, and its restart", "hang")


@dataclass(slots=True)
class Noted:
    """One attempt, as rank 0's journal tells it."""

    began: float
    last: float = 0.0
    """The time of its last line."""
    resumed: int | None = None
    resumed_at: float = 0.0
    steps: list[tuple[int, float]] = field(default_factory=list)
    spent: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {"data": [], "evaluation": []})

    def step_at(self, when: float) -> int:
        """Return the last step up to a time."""
        return max((step for step, at in self.steps if at <= when), default=self.resumed or 0)

    def spent_until(self, part: str, when: float) -> float:
        """Return the seconds that it noted for a part up to a time."""
        return sum(seconds for seconds, at in self.spent[part] if at <= when)


def noted_attempts(directory: Path) -> list[Noted]:
    """Return the attempts that rank 0 has noted, oldest first."""
    found = list[Noted]()
    for kind, value, at in read_journal(directory / "journal-0"):
        if kind == "process":
            found.append(Noted(began=float(at)))
        elif kind == "resumed":
            found[-1].resumed, found[-1].resumed_at = int(value), float(at)
        elif kind == "step":
            found[-1].steps.append((int(value), float(at)))
        elif kind in found[-1].spent:
            found[-1].spent[kind].append((float(value), float(at)))
        found[-1].last = float(at)
    return found


@dataclass(slots=True)
class Run:
    """One run, through all its lives."""

    directory: Path
    program: Path
    chance: random.Random
    after: float
    """The watchdog's bound."""
    ends: list[str] = field(default_factory=list)
    began: float = 0.0

    def live(self, lives: int) -> None:
        """Let it come to its end in its last life. Raise RuntimeError if a life does not go as it was drawn."""
        self.directory.mkdir()
        plan = {"directory": str(self.directory), "every": self.chance.randrange(5, 40), "after": self.after}
        plan["data"] = self.chance.uniform(0.005, 0.03)
        self.began = time.time()
        for number in range(lives):
            end = self.chance.choice(_ENDS) if number < lives - 1 else "finish"
            self.ends.append(end)
            steps = max((step for each in noted_attempts(self.directory) for step, _ in each.steps), default=0) + 40
            self._live_once(end, {**plan, "steps": steps if end == "finish" else 10**6})
            time.sleep(self.chance.choice((0.0, self.chance.uniform(0, 2))))

    def _live_once(self, end: str, plan: dict[str, Any]) -> None:
        before, seconds = len(noted_attempts(self.directory)), self.chance.uniform(0.1, 5.0)
        plan["hangs_at"] = seconds if end == "hang" else 0.0
        restarts = int(end == "kill of a rank, and its restart")
        job = self._start(plan, restarts)
        is_early = end == "kill of all ranks" and self.chance.random() < 0.2
        self._await(lambda: self._has_begun(before + 1, is_early=is_early), job)
        if end not in ("finish", "hang"):
            time.sleep(seconds)
        if restarts:
            self._kill([self.chance.randrange(_RANKS)])
            self._await(lambda: self._has_begun(before + 2), job)
            time.sleep(self.chance.uniform(0.1, 3.0))
        if end == "kill of all ranks":
            self._kill(range(_RANKS))
        elif end in ("stop", "kill of a rank, and its restart"):
            job.send_signal(signal.SIGTERM)
        try:
            code = job.wait(_END_SECONDS)
        finally:
            job.kill()
        right = {"finish": (0,), "stop": (75,), "kill of a rank, and its restart": (75,)}.get(end)
        if code not in right if right else code in (0, 75):
            log = (self.directory / "log").read_text()[-3000:]
            raise RuntimeError(f"life {len(self.ends)}, {end}: exit code {code}\n{log}")

    def _start(self, plan: dict[str, Any], restarts: int) -> subprocess.Popen[bytes]:
        command = [self.program, "run", "--processes-per-node", str(_RANKS), "--max-restarts", str(restarts)]
        with (self.directory / "log").open("a") as log:
            return subprocess.Popen(
                [*command, "--run-dir", "run", JOB],
                cwd=self.directory,
                stdout=log,
                stderr=log,
                env={**os.environ, "GOODPUT_JOB": json.dumps(plan)},
            )

    def _has_begun(self, attempts: int, *, is_early: bool = False) -> bool:
        found = noted_attempts(self.directory)
        return len(found) >= attempts and (is_early or found[-1].resumed is not None)

    def _await(self, condition: Callable[[], bool], job: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while not condition() and job.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"a life did not begin in {_END_SECONDS:.0f} s")
            time.sleep(0.02)

    def _kill(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            lines = read_journal(self.directory / f"journal-{rank}")
            with suppress(ProcessLookupError, IndexError):
                os.kill(int([value for kind, value, _ in lines if kind == "process"][-1]), signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one run."""

    lives: int
    ends: Sequence[str]
    attempts: int = 0
    error: float = 0.0
    """Of the sum of the parts, as a share of the wall time."""
    other: float = 0.0
    """The share of ``other``."""
    lost_steps: int = 0
    late_steps: int = 0
    """Steps that were noted after the last sign of life."""
    problems: tuple[str, ...] = ()


def compare(run: Run, largest_error: float) -> Result:
    """Compare the ledger with the journals."""
    account = read_account(DirectoryStore(run.directory / "run" / "checkpoints"))
    noted = noted_attempts(run.directory)
    problems = list(account.problems)
    wall = noted[-1].last - run.began
    error = (account.wall_seconds - wall) / wall
    if abs(error) > largest_error:
        problems.append(f"the parts add up to {account.wall_seconds:.2f} s of {wall:.2f} s")
    pairs = _paired(account, noted, problems)
    lost = late = 0
    for number, (each, found) in enumerate(pairs):
        later = [other.resumed for _, other in pairs[number + 1 :] if other.resumed is not None]
        kept = max([min(later), found.resumed or 0]) if later else each.attempt.step
        lost += max(each.attempt.step - kept, 0)
        late += found.step_at(found.last) - found.step_at(each.attempt.ended)
        problems += _differences(each, found)
    if lost != account.lost_steps:
        problems.append(f"{account.lost_steps} steps are lost, by the journal {lost}")
    hangs, noted_hangs = sum(each.end == "hang" for each in account.attempts), run.ends.count("hang")
    if hangs != noted_hangs or (account.seconds["hang"] > 0.8 * run.after * hangs) != (hangs > 0):
        problems.append(f"{hangs} of {noted_hangs} hangs, {account.seconds['hang']:.1f} s")
    return Result(
        lives=len(run.ends),
        ends=run.ends,
        attempts=len(account.attempts),
        error=error,
        other=account.shares["other"],
        lost_steps=lost,
        late_steps=late,
        problems=tuple(f"{run.directory}: {problem}" for problem in problems),
    )


def _paired(account: Account, noted: Sequence[Noted], problems: list[str]) -> list[tuple[AttemptAccount, Noted]]:
    """Pair the attempts of the ledger with those of the journal, and tell of each that is alone."""
    left = list(account.attempts)
    pairs = []
    for found in noted:
        mine = [each for each in left if found.began - 0.1 <= each.attempt.began <= found.last + 1.0]
        if mine:
            pairs.append((mine[0], found))
            left.remove(mine[0])
        elif found.resumed is not None and found.last - found.resumed_at > _FIRST_WRITE_SECONDS:
            problems.append(f"the attempt of {found.began:.2f} has no record")
    problems += [f"the attempt {each.attempt.id} was none" for each in left]
    return pairs


def _differences(each: AttemptAccount, found: Noted) -> list[str]:
    """Return what an attempt's record says otherwise than its journal, up to its last sign of life."""
    attempt, problems = each.attempt, []
    if found.resumed not in (attempt.resumed, None):
        problems.append(f"{attempt.id} resumed at {attempt.resumed}, by the journal at {found.resumed}")
    least, most = found.step_at(attempt.ended - 0.01), found.step_at(attempt.ended + 0.01) + 1
    if each.end in ("finished", "stopped"):
        least = most = found.step_at(found.last)
    if not least <= attempt.step <= most:
        problems.append(f"{attempt.id} came to step {attempt.step}, by the journal to {least}")
    for part in found.spent:
        least_seconds = found.spent_until(part, attempt.ended - 0.05)
        if attempt.seconds[part] < least_seconds - 0.01:
            told = f"{attempt.seconds[part]:.2f} s of {part}, by the journal {least_seconds:.2f}"
            problems += [f"{attempt.id}: {told}"]
    return problems


def lead_lives(
    directory: Path,
    *,
    lives: int,
    seed: int,
    together: int = _TOGETHER,
    after: float = _AFTER,
    largest_error: float = _LARGEST_ERROR,
) -> list[Result]:
    """Lead so many lives, some runs at once; keep the directories of those whose ledger is wrong."""
    runs = [min(_LIVES_A_RUN, lives - begun) for begun in range(0, lives, _LIVES_A_RUN)]

    def lead(numbered: tuple[int, int]) -> Result:
        number, count = numbered
        run = Run(directory / str(number), program, random.Random(f"{seed}/{number}"), after)
        try:
            run.live(count)
            result = compare(run, largest_error)
        except RuntimeError as error:
            return Result(lives=len(run.ends), ends=run.ends, problems=(f"{run.directory}: {error}",))
        if not result.problems:
            shutil.rmtree(run.directory)
        return result

    with forked_program(directory) as program, ThreadPoolExecutor(together) as pool:
        return list(pool.map(lead, enumerate(runs)))


def outcome(results: Sequence[Result]) -> Outcome:
    """Sum up the results of all runs."""
    ends = [end for each in results for end in each.ends]
    drawn = ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(sorted(ends)))
    return Outcome(
        done=sum(each.lives for each in results),
        unit="lives",
        notes=(
            f"{sum(each.attempts for each in results)} attempts of {len(results)} runs ({drawn}); parts within "
            f"{max(abs(each.error) for each in results):.2%} of the wall time, other at most "
            f"{max(each.other for each in results):.1%}; {sum(each.lost_steps for each in results)} lost steps, and "
            f"{sum(each.late_steps for each in results)} after the last sign of life"
        ),
        failures=tuple(problem for each in results for problem in each.problems),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.goodput", allow_abbrev=False)
    parser.add_argument("--lives", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", type=int, default=_TOGETHER, help="runs side by side")
    parser.add_argument("--after", type=float, default=_AFTER, help="the watchdog's bound in seconds")
    parser.add_argument("--largest-error", type=float, default=_LARGEST_ERROR, help="of the wall time")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="smddp-goodput-"))
    started = time.monotonic()
    results = lead_lives(
        directory,
        lives=arguments.lives,
        seed=arguments.seed,
        together=arguments.together,
        after=arguments.after,
        largest_error=arguments.largest_error,
    )
    found = outcome(results)
    print(found, f"{time.monotonic() - started:.0f} s", sep="\n")
    if not found.failures:
        shutil.rmtree(directory)
    sys.exit(bool(found.failures))


if __name__ == "__main__":
    main()
