"""A small job in which one fault happens, or none: ``smddp run hanging_job.py`` with the fault in HANGING_JOB.

It is the training script of `tests.torture.hangs`. Each phase of a step passes `happen`, where the fault strikes at its
rank and step. A rank without a fault trains on.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset, get_worker_info

import smddp
from smddp.distributed import first_failure
from smddp.process import process_tree
from smddp.watch import position

_LONG = 600
_GLOBAL_BATCH = 16
_SAMPLES = 16_000
_EVALUATE_EVERY = 10
_PAUSE_SHARE = 0.8
"""The longest pause of the slow loader, as a part of the watchdog's bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What this job is to do, the same on all ranks."""

    after: float
    """The watchdog's bound."""
    steps: int
    fault: str = ""
    """What happens; empty: nothing."""
    phase: str = ""
    rank: int = 0
    step: int = 0
    pause_every: int = 0
    """Samples of a rank from one pause of its slow loader to the next, on average; 0: none."""
    workers: int = 0
    compiles: bool = False
    """Whether the first layer is compiled, within the first step."""


PLAN = Plan(**json.loads(os.environ["HANGING_JOB"]))
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
first_failure._HEED_SECONDS = 1.0  # a rank that waits ends as soon as it knows the reason
position._NETWORK_PHASES = frozenset()  # others use this host's network


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Samples that come from the main thread or from workers, now and then late."""

    def __init__(self) -> None:
        self._taken = 0
        self._chance = random.Random(RANK)

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self._taken += 1
        if self._taken * WORLD_SIZE > PLAN.step * _GLOBAL_BATCH:
            happen("worker" if get_worker_info() else "data", PLAN.step)
        if PLAN.pause_every and self._chance.random() < 1 / PLAN.pause_every:
            time.sleep(self._chance.uniform(0, _PAUSE_SHARE) * PLAN.after)
        return torch.full((8,), index % 100 / 100), torch.tensor(index % 3)


class Layer(nn.Module):
    """The part of the model in which a forward or a backward may not end."""

    def __init__(self, trainer: list[smddp.Trainer]) -> None:
        super().__init__()
        self._trainer = trainer

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs."""
        if self.training:
            steps = self._trainer[0].steps
            happen("forward", steps)
            inputs = inputs * 1
            if inputs.requires_grad:
                inputs.register_hook(lambda _: happen("backward", steps))
        return inputs


class Part:
    """A part of each checkpoint of the script's own."""

    def __init__(self, trainer: list[smddp.Trainer]) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """Return nothing to speak of."""
        happen("save", self._trainer[0].steps)
        return {"one": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take nothing."""


def happen(phase: str, step: int) -> None:
    """Do what the plan says for this rank, in this phase, from its step on; once."""
    if not (PLAN.fault and phase == PLAN.phase and PLAN.rank == RANK and step >= PLAN.step) or Path("fault").exists():
        return
    _note(step)
    match PLAN.fault:
        case "sleep":
            time.sleep(_LONG)
        case "lock that is never released":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        case "native call":
            ctypes.CDLL(None).sleep(_LONG)
        case "native call with the GIL":
            ctypes.PyDLL(None).sleep(_LONG)
        case "SIGSTOP":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case "SIGABRT":
            ctypes.CDLL(None).abort()
        case "SIGSEGV":
            ctypes.string_at(0)
        case "SIGBUS":
            _read_past_the_end()
        case "exception":
            raise ValueError("injected")
        case "early end":
            sys.exit(0)
        case "full FIFO":
            _save_to_fifo()


def _note(step: int) -> None:
    Path("fault").write_text(f"{time.time()} {step} {os.getpid()} {process_tree.started(os.getpid())}")


def _read_past_the_end() -> bytes:
    """Read a page of a file that has lost it, as shared memory does that is full."""
    with Path("file").open("wb+") as file:
        file.truncate(mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        return mapped[:1]


def _save_to_fifo() -> None:
    """Save more than a pipe takes; who injected the fault reads it later."""
    os.mkfifo("fifo")
    with os.fdopen(os.open("fifo", os.O_RDWR), "wb") as fifo:  # so that opening it waits for nobody
        torch.save(torch.zeros(2**20), fifo)


def evaluate(model: nn.Module, steps: int) -> None:
    """Sum over the ranks, except on the rank that does something else instead."""
    with torch.no_grad():
        total = model(torch.ones(4, 8)).sum().double().repeat(2)
    happen("evaluation", steps)
    fault = PLAN.fault if PLAN.rank == RANK and steps >= PLAN.step and PLAN.phase == "collective" else ""
    if fault:
        _note(steps)
    match fault:
        case "skipped collective":
            return
        case "other collective":
            dist.barrier()
        case "other shape":
            dist.all_reduce(total.repeat(2))
        case "other type":
            dist.all_reduce(total.float())
        case _:
            dist.all_reduce(total)


def main(job: smddp.Job) -> None:
    """Train, evaluate and save."""
    known: list[smddp.Trainer] = []
    first: Any = nn.Linear(8, 16)
    model = nn.Sequential(torch.compile(first) if PLAN.compiles else first, Layer(known), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    policy = smddp.CheckpointPolicy(every=5 if PLAN.fault else 500)
    trainer = smddp.Trainer(job, model, optimizer, checkpoints=policy, state={"part": Part(known)})
    known.append(trainer)
    optimizer.register_step_pre_hook(lambda *_: happen("optimizer", trainer.steps))
    batches = trainer.batches(trainer.loader(Samples(), _GLOBAL_BATCH, num_workers=PLAN.workers))
    for steps in trainer.steps_to(PLAN.steps):
        happen("script", steps)
        if steps % _EVALUATE_EVERY == _EVALUATE_EVERY - 1:
            model.eval()
            evaluate(model, steps)
            model.train()
        inputs, labels = next(batches)
        trainer.step(nn.functional.cross_entropy(trainer.model(inputs), labels))
    Path(f"steps-{RANK}").write_text(str(trainer.steps))


if __name__ == "__main__":
    smddp.run(main, watch=smddp.Watch(after=PLAN.after, patience=0))
