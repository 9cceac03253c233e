"""Ends ranks again and again, each by the real end of its interpreter, and counts how they ended.

    python -m tests.torture.exits [--runs 2000] [--together 4]

Each run is a tiny training of two ranks. They are forked from this process, which has imported torch, so that a run
takes a fraction of a second. What holds the process group stays alive to the end, and gloo's workers are as late with
dropping the last collectives' tensors, at random, as a busy machine makes them. Exits with 1 if a rank ended badly, and
leaves its log.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

import smddp
import smddp.training.run
import smddp.training.trainer  # here, and not again in each rank
from tests.ports import free_port
from tests.torture.children import Child, be_a_parent, kill, torchrun_environ, wait

HELD: list[object] = []
_LATEST = 0.2  # seconds that a worker is late
_SECONDS = 300.0


def watched() -> torch.Tensor:
    """Make a tensor that a worker of gloo's takes its time to drop."""

    def be_late(_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(random.uniform(0, _LATEST))

    tensor = torch.ones(3)
    HELD.append(weakref.ref(tensor, be_late))
    return tensor


def train(job: smddp.Job) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    HELD.append(trainer)
    loader = trainer.loader(TensorDataset(torch.randn(16, 8)), batch_size=4)
    for _ in trainer.epochs(1):
        for (batch,) in trainer.batches(loader):
            trainer.step(trainer.model(batch).square().mean())
    told: list[object] = [None, None]
    dist.all_gather_object(told, job.cluster.rank)
    HELD.append(dist.all_reduce(watched(), async_op=True))
    dist.broadcast(watched(), src=0, async_op=True)
    dist.all_gather([watched(), watched()], watched(), async_op=True)


def start(directory: Path) -> list[Child]:
    """Fork the two ranks of a run; in them it does not return, but ends Python."""
    directory.mkdir()
    port, children = free_port(), []
    for rank in range(2):
        if (pid := os.fork()) == 0:
            os.environ.update(torchrun_environ(rank, 2, port), SMDDP_RUN_DIR=str(directory))
            log = os.open(directory / f"log-{rank}", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            smddp.run(train)
        children.append(Child(pid))
    return children


def leave_stacks(children: list[Child]) -> None:
    """Have each rank that has not ended write in its log what its threads do."""
    if None in [child.poll() for child in children]:
        for child in children:
            child.signal(signal.SIGUSR1)
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.exits", allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--together", type=int, default=4, help="runs side by side")
    arguments = parser.parse_args()
    be_a_parent()
    faulthandler.register(signal.SIGUSR1)
    directory = Path(tempfile.mkdtemp(prefix="smddp-exits-"))
    started, bad = time.monotonic(), 0
    for first in range(0, arguments.runs, arguments.together):
        numbers = range(first, min(first + arguments.together, arguments.runs))
        runs = {number: start(directory / str(number)) for number in numbers}
        for number, children in runs.items():
            wait(children, _SECONDS)
            leave_stacks(children)
            codes = kill(children)
            if codes == [0, 0]:
                shutil.rmtree(directory / str(number))
            else:
                bad += 1
                print(f"run {number} ended with {codes}: {directory / str(number)}", flush=True)
    print(f"{arguments.runs} runs of two ranks, {bad} ended badly, {time.monotonic() - started:.0f} s")
    if not bad:
        directory.rmdir()
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
