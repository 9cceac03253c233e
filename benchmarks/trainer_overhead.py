"""What a trainer costs a step: smddp's, Fabric, Accelerate and Lightning against a loop written by hand.

All train the same tiny MLP on the same batches in memory, on one CPU thread, so that hardly anything but the loop's
own cost is left. The contestants take turns, and each is compared with the loop by hand of the same turn: a machine
that is busy for a while is busy for all. Of all turns the median counts.

    python benchmarks/trainer_overhead.py [--steps 3000] [--repeats 5] [--processor-time]

smddp is measured three times: with everything off that can be; with metric lines, a CSV file beside the JSON lines, and
checkpoints by the clock, which is also how a stop is heard; and with all this and the watchdog. The others have
everything off.

Targets: off, at most 10 µs a step over the loop by hand; on, at most 30 µs, and below Fabric.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook

import smddp
import smddp.metrics
from smddp.goodput import PartClock
from smddp.job import Job
from smddp.watch import Watchdog

clock = time.perf_counter
BATCH_SIZE = 32
FEATURES = 32


def make() -> tuple[nn.Module, torch.optim.Optimizer, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [(torch.randn(BATCH_SIZE, FEATURES), torch.randint(10, (BATCH_SIZE,))) for _ in range(100)]
    return model, optimizer, batches


def repeated(batches: list[tuple[Tensor, Tensor]], steps: int) -> list[tuple[Tensor, Tensor]]:
    return (batches * (steps // len(batches) + 1))[:steps]


class Batches:
    """Batches as an iterable of their own kind: Lightning takes a list for several loaders."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def by_hand(steps: int) -> float:
    model, optimizer, batches = make()
    data = repeated(batches, steps)
    started = clock()
    for images, labels in data:
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return clock() - started


def with_smddp(steps: int, **options: Any) -> float:
    model, optimizer, batches = make()
    data = repeated(batches, steps)
    # The Trainer's ledger is written until the process ends, also while the directory is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        trainer = smddp.Trainer(Job.detect({"SMDDP_RUN_DIR": directory}), model, optimizer, **options)
        trainer.loader(range(steps * BATCH_SIZE), BATCH_SIZE)  # its place in the data is counted; it is not read
        epochs = trainer.epochs(1)
        next(epochs)
        started = clock()
        for images, labels in trainer.batches(data):
            loss = cross_entropy(trainer.model(images), labels)
            trainer.step(loss)
        seconds = clock() - started
    smddp.leave()
    return seconds


def with_smddp_off(steps: int) -> float:
    return with_smddp(steps, log_every=steps + 1, checkpoints=smddp.CheckpointPolicy(seconds=None))


def with_smddp_on(steps: int) -> float:
    return with_smddp(steps, log_every=50, trackers=[smddp.metrics.CsvFile()], checkpoints=smddp.CheckpointPolicy())


def with_smddp_watched(steps: int) -> float:
    taken = itertools.count()
    newest = [0]
    with tempfile.TemporaryDirectory() as directory:
        watchdog = Watchdog(
            smddp.Watch(),
            smddp.join(),
            steps=lambda: newest[0],
            output_dir=Path(directory),
            publish=lambda _: True,
            end=lambda _: None,
            hangs=lambda _: None,
            moves=lambda _: None,
        )
        hook = register_optimizer_step_post_hook(lambda *_: newest.__setitem__(0, next(taken)))
        with watchdog:
            seconds = with_smddp_on(steps)
        hook.remove()
    return seconds


def ledger_cost(steps: int) -> float:
    """Return the seconds that the goodput ledger's clock takes of so many steps, each call measured within the loop.

    That is less than this machine's noise in the seconds of a whole run.
    """
    taken: list[int] = []
    enter = PartClock.enter

    def timed(self: PartClock, part: str) -> None:
        began = time.perf_counter_ns()
        enter(self, part)
        taken.append(time.perf_counter_ns() - began)

    with patch.object(PartClock, "enter", timed):
        with_smddp_off(steps)
    return sum(sorted(taken)[: round(len(taken) * 0.99)]) / 1e9  # the slowest are other threads' turns


def with_fabric(steps: int) -> float:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    plain_model, plain_optimizer, batches = make()
    model, optimizer = fabric.setup(plain_model, plain_optimizer)
    data = repeated(batches, steps)
    started = clock()
    for images, labels in data:
        loss = cross_entropy(model(images), labels)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return clock() - started


def with_accelerate(steps: int) -> float:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    plain_model, plain_optimizer, batches = make()
    model, optimizer = accelerator.prepare(plain_model, plain_optimizer)
    data = repeated(batches, steps)
    started = clock()
    for images, labels in data:
        loss = cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return clock() - started


def with_lightning(steps: int) -> float:
    import lightning.pytorch as lightning

    plain_model, plain_optimizer, batches = make()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = plain_model
            self.started = self.seconds = 0.0

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            images, labels = batch
            return cross_entropy(self.model(images), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return plain_optimizer

        def on_train_start(self) -> None:
            self.started = clock()

        def on_train_end(self) -> None:
            self.seconds = clock() - self.started

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, Batches(repeated(batches, steps)))
    return module.seconds


CONTESTANTS: dict[str, tuple[str, Callable[[int], float]]] = {
    "by hand": ("torch", by_hand),
    "smddp, off": ("smddp", with_smddp_off),
    "smddp, on": ("smddp", with_smddp_on),
    "smddp, watch": ("smddp", with_smddp_watched),
    "Fabric": ("lightning", with_fabric),
    "Accelerate": ("accelerate", with_accelerate),
    "Lightning": ("lightning", with_lightning),
}
"""By name: the package that it needs, and how long it takes for so many steps, in seconds."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    arguments.add_argument("--steps", type=int, default=3000, help="steps of one measurement")
    arguments.add_argument("--repeats", type=int, default=5, help="measurements of each; the median counts")
    arguments.add_argument(
        "--processor-time", action="store_true", help="count the process's own time, on a machine that is busy"
    )
    options = arguments.parse_args()
    if options.processor_time:
        global clock
        clock = time.process_time
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")

    here = {name: train for name, (package, train) in CONTESTANTS.items() if find_spec(package) is not None}
    for train in here.values():
        train(200)  # warm up
    seconds: dict[str, list[float]] = {name: [] for name in here}
    for _ in range(options.repeats):
        for name, train in here.items():
            seconds[name].append(train(options.steps))

    counted = "processor time, " if options.processor_time else ""
    print(f"{options.steps} steps, {counted}median of {options.repeats}; torch {torch.__version__}, Python", end=" ")
    print(f"{platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(f"{'':12}{'µs a step':>10}{'over by hand':>14}{'ratio':>8}")
    over: dict[str, float] = {}
    for name in CONTESTANTS:
        if name not in here:
            print(f"{name:12}{'not installed: pip install smddp[benchmarks]':>32}")
            continue
        turns = list(zip(seconds[name], seconds["by hand"], strict=True))
        cost = statistics.median(seconds[name]) / options.steps * 1e6
        over[name] = statistics.median(own - base for own, base in turns) / options.steps * 1e6
        ratio = statistics.median(own / base for own, base in turns)
        print(f"{name:12}{cost:10.1f}{over[name]:+14.1f}{ratio:8.3f}")
    print(f"\noff: {over['smddp, off']:+.1f} µs, target at most +10")
    print(f"on: {over['smddp, on']:+.1f} µs, target at most +30", end="")
    print(f" and below Fabric's {over['Fabric']:+.1f}" if "Fabric" in over else "")
    watched = statistics.median(
        own - base for own, base in zip(seconds["smddp, watch"], seconds["smddp, on"], strict=True)
    )
    costs = [ledger_cost(options.steps) for _ in range(options.repeats)]
    ledger = statistics.median(costs) / options.steps * 1e6
    print(f"ledger: {ledger:.1f} µs of off, with the measurement of it, target at most about 1")
    print(f"watched: {watched / options.steps * 1e6:+.1f} µs over on, target at most 1 % of a step of 5 ms: +50")


if __name__ == "__main__":
    main()
