"""R9 and R12: a job that is stopped or killed several times an epoch, and goes on with another number of ranks.

Whatever the ranks and however they ended, each epoch must have taken every sample exactly once. And a stop, which is a
SIGTERM to some or all ranks, must end every rank in time with exit code 75, and lose no step.

    python -m tests.torture.elastic [--interruptions 100] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

import smddp
from smddp.job import Job
from smddp.process.exit_codes import RESUMABLE
from tests.ports import free_port
from tests.torture.children import (
    Child,
    Journal,
    be_a_parent,
    fork,
    kill,
    last_words,
    read_journal,
    torchrun_environ,
    wait,
)
from tests.torture.outcome import Outcome

SAMPLES = 240
GLOBAL_BATCH = 12
STEPS_AN_EPOCH = SAMPLES // GLOBAL_BATCH
WORLD_SIZES = (1, 2, 3, 4)

GRACE_SECONDS = 30.0
"""What a stop may take here, where the disk is shared with whatever else runs; SageMaker grants 120 s."""


def live(directory: Path, life: int, epochs: int) -> None:
    """Train as a rank of a job, as a user's script does, and tell of each step's samples before it is taken."""
    os.environ["SMDDP_RUN_DIR"] = str(directory / "run")

    def main(job: Job) -> None:
        journal = Journal(directory / f"journal-{life}-{job.cluster.rank}")
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
        policy = smddp.CheckpointPolicy(every=2, seconds=None)
        trainer = smddp.Trainer(job, model, optimizer, checkpoints=policy, seed=9)
        loader = trainer.loader(range(SAMPLES), batch_size=GLOBAL_BATCH)
        trainer.resume()
        journal.write("resumed", trainer.steps)
        for _ in trainer.epochs(epochs):
            for samples in trainer.batches(loader):
                loss = trainer.model(samples.float().unsqueeze(1)).square().mean()
                journal.write("step", trainer.steps + 1, ",".join(map(str, samples.tolist())))
                trainer.step(loss)

    smddp.run(main)


@dataclass(slots=True)
class Tally:
    """What was done to the jobs, and what they did wrong."""

    interruptions: int = 0
    changes: int = 0
    """Of the number of ranks, from one life to the next."""
    epochs: int = 0
    stops: list[float] = field(default_factory=list)
    """How long each took, in seconds."""
    elastic: list[str] = field(default_factory=list)
    """What is wrong with the samples."""
    stopping: list[str] = field(default_factory=list)
    """What is wrong with the stops."""


def change_ranks(*, interruptions: int, seed: int, directory: Path, epochs: int = 5) -> tuple[Outcome, Outcome]:
    """Interrupt jobs so many times, four or five times an epoch; give what came of R9 and of R12."""
    be_a_parent()
    chance = random.Random(seed)
    tally = Tally()
    number = 0
    while tally.interruptions < interruptions and not (tally.elastic or tally.stopping):
        number += 1
        directory_of_job = directory / f"job-{number}"
        directory_of_job.mkdir()
        InterruptedJob(directory_of_job, epochs, chance, tally).run(interruptions - tally.interruptions)
    worst = f"{max(tally.stops, default=0.0):.1f} s at worst, of {GRACE_SECONDS:g}"
    changes = f"{tally.changes} changes of the number of ranks (1 to 4) in {tally.epochs} epochs"
    return (
        Outcome(done=tally.interruptions, unit="interruptions", notes=changes, failures=tuple(tally.elastic)),
        Outcome(done=len(tally.stops), unit="stops", notes=worst, failures=tuple(tally.stopping)),
    )


class InterruptedJob:
    """One job, through all its lives."""

    def __init__(self, directory: Path, epochs: int, chance: random.Random, tally: Tally) -> None:
        self._directory = directory
        self._epochs = epochs
        self._chance = chance
        self._tally = tally
        self._lives = 0
        self._samples: dict[int, list[int]] = {}
        """Those that count, by step, of all ranks and lives so far."""

    def run(self, interruptions: int) -> None:
        """Interrupt it so many times, unless it comes to its end before; then let it come to its end."""
        world_size = 0
        goes_on, must_begin_at = True, None
        while goes_on and not (self._tally.elastic or self._tally.stopping):
            before, world_size = world_size, self._chance.choice(WORLD_SIZES)
            self._tally.changes += world_size != before > 0
            children = self._start(world_size)
            interrupted = interruptions > 0 and self._await_steps(self._chance.randrange(9), children)
            stops = interrupted and self._chance.random() < 0.5
            if stops:
                self._stop(children)
            elif interrupted:
                kill([self._chance.choice(children)])
                time.sleep(self._chance.choice((0.0, 0.05)))
            codes = kill(children) if interrupted else wait(children)
            goes_on = codes != [0] * world_size
            if goes_on and not interrupted:
                self._tally.elastic.append(self._told(f"ended with {codes}"))
            if goes_on and stops and codes != [RESUMABLE] * world_size:
                self._tally.stopping.append(self._told(f"stopped with {codes}, not with {RESUMABLE}"))
            interruptions -= interrupted
            self._tally.interruptions += interrupted
            newest = self._count_samples(world_size, must_begin_at)
            must_begin_at = newest if stops else None
        self._tally.epochs += self._epochs
        if not goes_on:
            self._check_epochs()

    def _start(self, world_size: int) -> list[Child]:
        self._lives += 1
        directory, life, epochs = self._directory, self._lives, self._epochs
        port = free_port()
        return [
            fork(
                lambda: live(directory, life, epochs),
                directory / f"log-{life}-{rank}",
                torchrun_environ(rank, world_size, port),
            )
            for rank in range(world_size)
        ]

    def _await_steps(self, steps: int, children: list[Child]) -> bool:
        """Return True once this life has taken so many steps, or False if a rank ended before."""
        while len(self._journal(rank=0)) <= steps:
            if None not in wait(children[:1], 0.005):
                return False
        return True

    def _stop(self, children: list[Child]) -> None:
        """Send SIGTERM to all ranks, or to one alone, and give them their time."""
        began = time.monotonic()
        for child in self._chance.choice((children, [self._chance.choice(children)])):
            child.signal(signal.SIGTERM)
        wait(children, GRACE_SECONDS)
        self._tally.stops.append(time.monotonic() - began)

    def _count_samples(self, world_size: int, must_begin_at: int | None) -> int:
        """Add what this life took; give its newest step."""
        journals = [journal for rank in range(world_size) if (journal := self._journal(rank))]
        if not journals:
            return max(self._samples, default=0)
        begun = {int(journal[0][1]) for journal in journals}
        newest = resumed = max(begun)
        if len(begun) > 1 or len(self._samples) < resumed:
            self._tally.elastic.append(self._told(f"began at {begun} after {len(self._samples)} steps"))
        if must_begin_at not in (None, resumed):
            self._tally.stopping.append(self._told(f"began at {resumed} after a stop at {must_begin_at}"))
        self._samples = {step: samples for step, samples in self._samples.items() if step <= resumed}
        for journal in journals:
            for _, number, samples in journal[1:]:
                self._samples.setdefault(int(number), []).extend(map(int, samples.split(",")))
                newest = max(newest, int(number))
        return newest

    def _check_epochs(self) -> None:
        for epoch in range(self._epochs):
            steps = range(epoch * STEPS_AN_EPOCH + 1, (epoch + 1) * STEPS_AN_EPOCH + 1)
            taken = Counter(sample for step in steps for sample in self._samples.get(step, []))
            if wrong := {sample: taken[sample] for sample in range(SAMPLES) if taken[sample] != 1}:
                some = dict(list(wrong.items())[:9])
                self._tally.elastic.append(
                    self._told(f"in epoch {epoch} {len(wrong)} samples came not once, but: {some}")
                )

    def _journal(self, rank: int) -> list[list[str]]:
        return read_journal(self._directory / f"journal-{self._lives}-{rank}")

    def _told(self, what: str) -> str:
        words = last_words(self._directory, f"log-{self._lives}-*")
        return f"{self._directory.name}, life {self._lives}: {what}\n{words}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--interruptions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcomes = change_ranks(interruptions=arguments.interruptions, seed=arguments.seed, directory=Path(directory))
    print(*outcomes, sep="\n")
    sys.exit("\n".join(failure for outcome in outcomes for failure in outcome.failures) or 0)


if __name__ == "__main__":
    main()
