"""A small job that notes what it does and when, for `tests.torture.goodput`: its plan is in GOODPUT_JOB.

Each rank writes to its own journal: ``process PID TIME`` first, ``resumed STEP TIME`` once its Trainer has its
checkpoint, ``step STEP TIME`` after each step, ``data SECONDS TIME`` and ``evaluation SECONDS TIME`` after what it
spent there on purpose, and ``end 0 TIME`` when Python ends.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import smddp
from smddp.distributed import first_failure

SAMPLES, GLOBAL_BATCH = 640, 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What this job is to do, the same on all ranks and in all lives."""

    directory: str
    """Of the journals."""
    steps: int
    every: int
    """Steps from one save to the next."""
    data: float
    """Seconds that a batch takes."""
    after: float
    """The watchdog's bound in seconds."""
    hangs_at: float = 0.0
    """Seconds after its resume at which the last rank stops moving; 0: it does not."""


PLAN = Plan(**json.loads(os.environ["GOODPUT_JOB"]))
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
JOURNAL = os.open(Path(PLAN.directory) / f"journal-{RANK}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
first_failure._HEED_SECONDS = 1.0  # a rank that waits ends as soon as it knows the reason


def note(kind: str, value: float) -> None:
    os.write(JOURNAL, f"{kind} {value} {time.time()}\n".encode())


class Slow(Dataset[Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        began = time.perf_counter()
        time.sleep(PLAN.data * WORLD_SIZE / GLOBAL_BATCH)
        note("data", time.perf_counter() - began)
        return torch.ones(4) * index


def evaluate(trainer: smddp.Trainer, loader: object) -> None:
    with torch.no_grad():
        for batch in trainer.batches(loader):  # type: ignore[var-annotated, arg-type]
            began = time.perf_counter()
            time.sleep(0.05)
            trainer.model(batch)
            note("evaluation", time.perf_counter() - began)


def main(job: smddp.Job) -> None:
    model = nn.Linear(4, 1)
    policy = smddp.CheckpointPolicy(every=PLAN.every, seconds=None)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=1e-6), checkpoints=policy)
    loader = trainer.loader(Slow(), GLOBAL_BATCH)
    others = trainer.evaluation_loader(torch.ones(8 * WORLD_SIZE, 4), 4)
    trainer.resume()
    note("resumed", trainer.steps)
    began = time.monotonic()
    for _ in trainer.epochs(1000, max_steps=PLAN.steps):
        for batch in trainer.batches(loader):
            time.sleep(0.01)
            trainer.step(trainer.model(batch).mean())
            note("step", trainer.steps)
            if PLAN.hangs_at and RANK == WORLD_SIZE - 1 and time.monotonic() - began > PLAN.hangs_at:
                time.sleep(600)
        evaluate(trainer, others)


if __name__ == "__main__":
    note("process", os.getpid())
    atexit.register(note, "end", 0)
    smddp.run(main, watch=smddp.Watch(after=PLAN.after, patience=0.5))
