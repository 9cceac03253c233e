"""What more ranks bring: smddp's Trainer against torchrun and bare DDP, and DataParallel beside them.

Each rank has batches of its own, always as large (weak scaling), of random numbers in memory. On a CPU each rank
computes with one thread, so that two ranks have twice the processor of one. Within one launch the bare loop and smddp's
take turns on the same processes; of all turns the median counts.

DataParallel is one process that gives each GPU a part of the batch, and copies the model to all of them in each step.
Without GPUs it calls the model as it is: then its line is one process with one thread on the batches of all ranks.

    python benchmarks/scaling.py [--ranks 2] [--steps 100] [--repeats 5] [--width 1024]

Target: with several ranks at least 0.98 of bare DDP's throughput. It trains on GPUs where there are enough of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel, DistributedDataParallel

import smddp
from smddp.job import Job

BATCH_SIZE = 64
"""Samples of one rank's batch."""
FEATURES, CLASSES = 256, 10
WARM_UP = 10


def network(width: int, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)]
    return nn.Sequential(*layers).to(device)


_TURNS = itertools.count()


class Contest:
    """The contestants of one launch, on one rank."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self._options = options
        self._device = device
        self._images = torch.randn(BATCH_SIZE, FEATURES, device=device)
        self._labels = torch.randint(CLASSES, (BATCH_SIZE,), device=device)

    def bare(self) -> float:
        """Train by hand, with DDP where there are several ranks; return the seconds a step, as the others do."""
        model = network(self._options.width, self._device)
        ids = [self._device.index] if self._device.type == "cuda" else None
        replica = DistributedDataParallel(model, device_ids=ids) if dist.get_world_size() > 1 else model
        return self._by_hand(replica, model)

    def data_parallel(self) -> float:
        """Train by hand, in one process, on the batches of all ranks together."""
        model = network(self._options.width, self._device)
        self._images = self._images.repeat(self._options.ranks, 1)
        self._labels = self._labels.repeat(self._options.ranks)
        return self._by_hand(DataParallel(model), model)

    def with_smddp(self) -> float:
        """Trains by smddp's Trainer."""
        model = network(self._options.width, self._device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        trainer = smddp.Trainer(Job.detect(), model, optimizer, name=f"turn-{next(_TURNS)}", precision="fp32")

        def step() -> None:
            trainer.step(cross_entropy(trainer.model(self._images), self._labels))

        return self._seconds(step)

    def _by_hand(self, replica: nn.Module, model: nn.Module) -> float:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step() -> None:
            cross_entropy(replica(self._images), self._labels).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return self._seconds(step)

    def _seconds(self, step: Callable[[], None]) -> float:
        for _ in range(WARM_UP):
            step()
        self._settle()
        started = time.perf_counter()
        for _ in range(self._options.steps):
            step()
        self._settle()
        return (time.perf_counter() - started) / self._options.steps

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        dist.barrier()


def contest(options: argparse.Namespace) -> None:
    """Take turns on this rank, and print the seconds a step of each, on rank 0."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    on_gpu = torch.cuda.device_count() >= options.ranks
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    names = ["bare", "with_smddp"] + (["data_parallel"] if dist.get_world_size() == 1 else [])
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.repeats):
        for name in names:
            seconds[name].append(getattr(Contest(options, device), name)())
    if dist.get_rank() == 0:
        print(json.dumps(seconds))
    smddp.leave()
    dist.destroy_process_group()


def launch(ranks: int) -> dict[str, list[float]]:
    """Run this file on so many ranks of this machine by torchrun; give the seconds a step of each contestant."""
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
                *(str(Path(__file__)), "--contest", *sys.argv[1:]),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", "SMDDP_RUN_DIR": directory},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    seconds: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    arguments.add_argument("--ranks", type=int, default=2, help="ranks to compare with one")
    arguments.add_argument("--steps", type=int, default=100, help="steps of one measurement")
    arguments.add_argument("--repeats", type=int, default=5, help="measurements of each; the median counts")
    arguments.add_argument("--width", type=int, default=1024, help="of the model's hidden layers")
    arguments.add_argument("--contest", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.contest:
        contest(options)
        return

    one, several = launch(1), launch(options.ranks)
    on_gpu = torch.cuda.device_count() >= options.ranks
    where = torch.cuda.get_device_name() if on_gpu else f"{os.cpu_count()} cores, one thread a rank"
    print(f"{options.steps} steps, median of {options.repeats}; torch {torch.__version__}, Python", end=" ")
    print(f"{platform.python_version()}, {where}, load {os.getloadavg()[0]:.1f}\n")
    print(f"{'':28}{'samples/s':>10}{'of bare':>9}{'efficiency':>12}")
    alone = 0.0
    for ranks, seconds in ((1, one), (options.ranks, several)):
        throughput = {name: ranks * BATCH_SIZE / statistics.median(each) for name, each in seconds.items()}
        alone = alone or throughput["bare"]
        for name, told in (("bare", "bare DDP" if ranks > 1 else "bare loop"), ("with_smddp", "smddp")):
            of_bare = statistics.median(base / own for own, base in zip(seconds[name], seconds["bare"], strict=True))
            efficiency = throughput[name] / ranks / alone
            label = f"{told}, {ranks} rank{'s' if ranks > 1 else ''}"
            print(f"{label:28}{throughput[name]:10.0f}{of_bare:9.3f}{efficiency:12.2f}")
    throughput = options.ranks * BATCH_SIZE / statistics.median(one["data_parallel"])
    label = f"DataParallel, {options.ranks} GPUs" if on_gpu else "DataParallel, no GPU"
    print(f"{label:28}{throughput:10.0f}{'':9}{throughput / options.ranks / alone:12.2f}")
    print("\ntarget: smddp on several ranks at least 0.98 of bare DDP")
    if not on_gpu:
        print("without GPUs DataParallel calls the model in one process, as if it were not there")


if __name__ == "__main__":
    main()
