"""R9 and R12: a job that is stopped or killed several times an epoch, and goes on in another layout.

A layout is a number of ranks, and how they divide the model. Whatever the layouts and however the lives ended, each
epoch must have taken every sample exactly once; each life must begin with the newest checkpoint that is whole, with all
bits of weights and moments that were saved; and losses and final state must be those of one undisturbed process, to
1e-5. And a stop, which is a SIGTERM to some or all ranks, must end every rank in time with exit code 75, and lose no
step.

    python -m tests.torture.elastic [--interruptions 100 | --chains 100] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from smddp.checkpoint import list_checkpoints
from smddp.checkpoint.restore.reader import read_newest
from smddp.checkpoint.stores import open_store
from smddp.process.exit_codes import RESUMABLE
from tests.torture.children import Child, be_a_parent, kill, last_words, read_journal, wait
from tests.torture.elastic_job import REPLICATED, RESHARDED, SAMPLES, STEPS_AN_EPOCH, live
from tests.torture.layout import Layout
from tests.torture.outcome import Outcome
from tests.torture.stored_run import untrustworthy

GRACE_SECONDS = 30.0
"""What a stop may take here, where the disk is shared with whatever else runs; SageMaker grants 120 s."""

TOLERANCE = 1e-5
"""How far losses, weights and moments may be from those of one undisturbed process."""


@dataclass(slots=True)
class Tally:
    """What was done to the jobs, and what they did wrong."""

    jobs: int = 0
    interruptions: int = 0
    kills: int = 0
    saving: int = 0
    """Kills within a save."""
    changes: int = 0
    """Of the layout, from one life to the next."""
    epochs: int = 0
    stops: list[float] = field(default_factory=list)
    """How long each took, in seconds."""
    farthest: float = 0.0
    """From the undisturbed process, of all losses, weights and moments."""
    elastic: list[str] = field(default_factory=list)
    """What is wrong with the samples or the state."""
    stopping: list[str] = field(default_factory=list)
    """What is wrong with the stops."""

    @property
    def failed(self) -> bool:
        return bool(self.elastic or self.stopping)

    def outcomes(self, done: int, unit: str, notes: str) -> tuple[Outcome, Outcome]:
        """Return what came of R9 and of R12."""
        worst = f"{max(self.stops, default=0.0):.1f} s at worst, of {GRACE_SECONDS:g}"
        notes += f", {self.kills} kills, {self.saving} of them within a save; {self.farthest:.0e} from one process"
        return (
            Outcome(done=done, unit=unit, notes=notes, failures=tuple(self.elastic)),
            Outcome(done=len(self.stops), unit="stops", notes=worst, failures=tuple(self.stopping)),
        )


def change_ranks(*, interruptions: int, seed: int, directory: Path, epochs: int = 5) -> tuple[Outcome, Outcome]:
    """Interrupt jobs so many times, four or five times an epoch; give what came of R9 and of R12."""
    chance, tally, expected = random.Random(seed), Tally(), Expected(directory, epochs)
    while tally.interruptions < interruptions and not tally.failed:
        job = InterruptedJob(directory, REPLICATED, expected, chance, tally)
        job.run(interruptions - tally.interruptions)
    changes = f"{tally.changes} changes of the number of ranks (1 to 4) in {tally.epochs} epochs"
    return tally.outcomes(tally.interruptions, "interruptions", changes)


def reshard(*, chains: int, seed: int, directory: Path, epochs: int = 1) -> tuple[Outcome, Outcome]:
    """Lead so many jobs of a sharded model through several layouts; give what came of R9 and of R12."""
    chance, tally, expected = random.Random(seed), Tally(), Expected(directory, epochs)
    while tally.jobs < chains and not tally.failed:
        InterruptedJob(directory, RESHARDED, expected, chance, tally).run(_LONGEST_CHAIN * epochs)
    changes = f"{tally.interruptions} interruptions, {tally.changes} changes of the layout"
    return tally.outcomes(tally.jobs, "chains", changes)


_LONGEST_CHAIN = 8  # interruptions an epoch
_KILLED_EARLY = 0.1  # share of the lives
_LONGEST_START = 2.0  # seconds to such a kill


class Expected:
    """What one undisturbed process does."""

    def __init__(self, directory: Path, epochs: int) -> None:
        be_a_parent()
        self.epochs = epochs
        own = directory / "undisturbed"
        own.mkdir()
        codes = wait(Layout().fork(lambda: live(own, 1, Layout(), epochs), own, "log-1"))
        assert codes == [0], last_words(own, "log-*")
        steps = [words for kind, *words in read_journal(own / "journal-1-0") if kind == "step"]
        self._losses = {int(step): float.fromhex(loss) for step, _, loss in steps}
        self._state = _newest_state(own)

    def distance_of_loss(self, step: int, of_ranks: Sequence[float]) -> float:
        """Return how far the mean of all ranks' losses is from the loss of one process."""
        return abs(sum(of_ranks) / len(of_ranks) - self._losses[step])

    def distance_of_state(self, directory: Path) -> float:
        """Return how far weights and moments of the newest checkpoint are from those of one process."""
        state = _newest_state(directory)
        assert state.keys() == self._state.keys()
        return max(float((state[name] - expected).abs().max()) for name, expected in self._state.items())


class InterruptedJob:
    """One job, through all its lives."""

    def __init__(
        self, directory: Path, layouts: Sequence[Layout], expected: Expected, chance: random.Random, tally: Tally
    ) -> None:
        tally.jobs += 1
        self._directory = directory / f"job-{tally.jobs}"
        self._directory.mkdir()
        self._layouts = layouts
        self._expected = expected
        self._chance = chance
        self._tally = tally
        self._lives: list[Layout] = []
        self._saved: set[tuple[str, str]] = set()
        """Step and digest of each state that a life began to save."""
        self._samples: dict[int, list[int]] = {}
        """Those that count, by step, of all ranks and lives so far."""

    def run(self, interruptions: int) -> None:
        """Interrupt it so many times, unless it comes to its end before; then let it come to its end."""
        goes_on, must_begin_at = True, 0
        while goes_on and not self._tally.failed:
            children = self._start()
            early = self._chance.random() < _KILLED_EARLY
            interrupted = interruptions > 0 and self._await_moment(children, early=early)
            stops = interrupted and not early and self._chance.random() < 0.5
            if stops:
                self._stop(children)
            elif interrupted:
                self._kill(children)
            codes = kill(children) if interrupted else wait(children)
            goes_on = codes != [0] * len(children)
            if goes_on and not interrupted:
                self._tally.elastic.append(self._told(f"ended with {codes}"))
            if goes_on and stops and codes != [RESUMABLE] * len(children):
                self._tally.stopping.append(self._told(f"stopped with {codes}, not with {RESUMABLE}"))
            interruptions -= interrupted
            self._tally.interruptions += interrupted
            newest = self._count(must_begin_at)
            must_begin_at = self._newest_whole()
            if stops and must_begin_at != newest:
                self._tally.stopping.append(self._told(f"stopped at step {newest}, and saved {must_begin_at}"))
            if interrupted and not stops:
                self._tally.kills += 1
                begun = [int(step) for kind, step, *_ in self._journal(rank=0) if kind == "saving"]
                self._tally.saving += max(begun, default=0) > must_begin_at
        self._tally.epochs += self._expected.epochs
        if not goes_on:
            self._check_epochs()
            self._compare("weights or moments", self._expected.distance_of_state(self._directory))

    def _start(self) -> list[Child]:
        layout = self._chance.choice(self._layouts)
        self._tally.changes += [layout] != self._lives[-1:] != []
        self._lives.append(layout)
        directory, life, epochs = self._directory, len(self._lives), self._expected.epochs
        return layout.fork(lambda: live(directory, life, layout, epochs), directory, f"log-{life}")

    def _await_moment(self, children: list[Child], *, early: bool) -> bool:
        """Return True in one of this life's first steps, or before or in its load; False if a rank ended before."""
        if early:
            return None in wait(children[:1], self._chance.uniform(0.0, _LONGEST_START))
        steps = self._chance.randrange(9)
        while [kind for kind, *_ in self._journal(rank=0)].count("step") < steps or not self._journal(rank=0):
            if None not in wait(children[:1], 0.005):
                return False
        return True

    def _kill(self, children: list[Child]) -> None:
        """Kill all ranks, or one a moment before the others, at a random moment of a step or a save."""
        time.sleep(self._chance.uniform(0.0, 0.05))
        kill(self._chance.choice((children, [self._chance.choice(children)])))
        time.sleep(self._chance.choice((0.0, 0.05)))

    def _stop(self, children: list[Child]) -> None:
        """Send SIGTERM to all ranks, or to one alone, and give them their time."""
        began = time.monotonic()
        for child in self._chance.choice((children, [self._chance.choice(children)])):
            child.signal(signal.SIGTERM)
        wait(children, GRACE_SECONDS)
        self._tally.stops.append(time.monotonic() - began)

    def _count(self, must_begin_at: int) -> int:
        """Add what this life took, and compare it; give its newest step."""
        layout = self._lives[-1]
        journals = {rank: journal for rank in range(layout.ranks) if (journal := self._journal(rank))}
        if not journals:
            return max(self._samples, default=0)
        begun = {(step, state) for ((_, step, state), *_) in journals.values()}
        newest = resumed = max(int(step) for step, _ in begun)
        if len(begun) > 1 or resumed != must_begin_at:
            self._tally.elastic.append(self._told(f"began at {begun} instead of {must_begin_at}"))
        if resumed and not begun <= self._saved:
            self._tally.elastic.append(self._told(f"began with {begun}, which was never saved"))
        self._samples = {step: samples for step, samples in self._samples.items() if step <= resumed}
        losses: dict[int, list[float]] = {}
        for rank, journal in journals.items():
            for kind, number, *words in journal[1:]:
                if kind == "saving":
                    self._saved.add((number, words[0]))
                    continue
                if rank % layout.tensor:
                    continue  # the rank before computes on the same samples
                step, (samples, loss) = int(number), words
                self._samples.setdefault(step, []).extend(map(int, samples.split(",")))
                losses.setdefault(step, []).append(float.fromhex(loss))
                newest = max(newest, step)
        for step, of_ranks in losses.items():
            if len(of_ranks) == layout.ranks // layout.tensor:
                self._compare(f"the loss of step {step}", self._expected.distance_of_loss(step, of_ranks))
        return newest

    def _newest_whole(self) -> int:
        """Give the step of the newest checkpoint that is valid to the last byte; 0 if absent."""
        found = list_checkpoints(_checkpoints(self._directory))
        self._tally.elastic += map(self._told, untrustworthy(_checkpoints(self._directory)))
        return max((info.step for info in found if info.valid), default=0)

    def _compare(self, what: str, distance: float) -> None:
        self._tally.farthest = max(self._tally.farthest, distance)
        if not distance <= TOLERANCE:
            self._tally.elastic.append(self._told(f"{what}: {distance} from those of one process"))

    def _check_epochs(self) -> None:
        for epoch in range(self._expected.epochs):
            steps = range(epoch * STEPS_AN_EPOCH + 1, (epoch + 1) * STEPS_AN_EPOCH + 1)
            taken = Counter(sample for step in steps for sample in self._samples.get(step, []))
            if wrong := {sample: taken[sample] for sample in range(SAMPLES) if taken[sample] != 1}:
                some = dict(list(wrong.items())[:9])
                self._tally.elastic.append(
                    self._told(f"in epoch {epoch} {len(wrong)} samples came not once, but: {some}")
                )

    def _journal(self, rank: int) -> list[list[str]]:
        return read_journal(self._directory / f"journal-{len(self._lives)}-{rank}")

    def _told(self, what: str) -> str:
        words = last_words(self._directory, f"log-{len(self._lives)}-*")
        return f"{self._directory.name}, lives {self._lives}: {what}\n{words}"


def _checkpoints(directory: Path) -> Path:
    return directory / "run" / "checkpoints"


def _newest_state(directory: Path) -> dict[str, torch.Tensor]:
    """Give weights and moments of the newest checkpoint, by name."""
    loaded = read_newest(open_store(_checkpoints(directory)))
    assert loaded is not None
    state: dict[str, Any] = dict(loaded.unflatten("model"))
    for number, moments in loaded.unflatten("optimizer")["state"].items():
        state |= {f"{number}.{name}": value for name, value in moments.items()}
    return state


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--interruptions", type=int, default=100)
    parser.add_argument("--chains", type=int, help="of a sharded model, instead")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory, seed = Path(name), arguments.seed
        if arguments.chains is None:
            outcomes = change_ranks(interruptions=arguments.interruptions, seed=seed, directory=directory)
        else:
            outcomes = reshard(chains=arguments.chains, seed=seed, directory=directory)
    print(*outcomes, sep="\n")
    sys.exit("\n".join(failure for outcome in outcomes for failure in outcome.failures) or 0)


if __name__ == "__main__":
    main()
