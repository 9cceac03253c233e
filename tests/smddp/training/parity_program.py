"""Trains by hand, by the Trainer, and by a Trainer that is stopped and resumed; prints what differs, a line a case.

The loop by hand is the one of PyTorch's own documentation: DistributedDataParallel, autocast, GradScaler, no_sync.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import smddp
from smddp.distributed import ranks
from smddp.process.preemption import Stopped, stop_signal
from smddp.training.precision import unwrapped

SAMPLES, GLOBAL_BATCH, EPOCHS, SEED = 48, 12, 3, 5
OPTIONS = ("precision", "optimizer", "accumulate", "clip", "schedule", "ema")
CASES = [
    ("fp32", "sgd", 1, None, None, None),
    ("fp32", "adamw", 3, "norm", "step", 0.9),
    ("fp32", "sgd", 1, "value", "epoch", 0.9),
    ("bf16", "adamw", 3, None, "epoch", 0.9),
    ("bf16", "sgd", 1, "norm", "step", None),
    ("bf16", "sgd", 3, "value", None, 0.9),
    ("bf16", "adamw", 1, "value", "step", None),
    ("fp16", "sgd", 3, None, "step", 0.9),
    ("fp16", "adamw", 1, "norm", None, 0.9),
    ("fp16", "sgd", 3, "norm", "epoch", None),
    ("fp16", "adamw", 1, "value", "epoch", None),
]
"""Each value of an option meets each value of every other one."""

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Case:
    """One row of ``CASES`` with fresh weights, the same on all ranks."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.precision, self.kind, self.accumulate, self.clip, self.schedule, self.ema = row
        torch.manual_seed(3)
        self.model = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 16), nn.Linear(16, 1)
        )
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
            if self.kind == "sgd"
            else torch.optim.AdamW(self.model.parameters(), lr=0.01)
        )
        self.scheduler: Any = None
        if self.schedule == "step":
            self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=10)
        elif self.schedule == "epoch":
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)

    def result(self, ema: nn.Module | None, scaler: Any, *, with_buffers: bool) -> dict[str, Tensor]:
        """Everything that training has made, by name."""
        found = {f"weights.{name}": weight for name, weight in self.model.named_parameters()}
        if ema is not None:
            found |= {f"ema.{name}": weight for name, weight in ema.named_parameters()}
        if with_buffers:  # those of DDP's other ranks are not what is evaluated or saved
            found |= {f"buffers.{name}": value for name, value in self.model.named_buffers()}
        if with_buffers and ema is not None:
            buffers = ((name, value) for name, value in ema.named_buffers() if value.is_floating_point())
            found |= {f"ema.buffers.{name}": value for name, value in buffers}
        if scaler is not None and scaler.is_enabled():
            found |= {f"scaler.{name}": torch.tensor(value) for name, value in scaler.state_dict().items()}
        for number, state in enumerate(self.optimizer.state.values()):
            found |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in state.items()}
        found["lr"] = torch.tensor(self.optimizer.param_groups[0]["lr"])
        return {name: value.detach().clone() for name, value in found.items()}


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(SAMPLES, 6, generator=generator)
    return TensorDataset(images, 30 * images.sum(dim=1, keepdim=True).abs())  # large: fp16's first steps overflow


def seed_noise(rank: int) -> None:
    torch.manual_seed(100 + rank)


def by_hand(case: Case, rank: int, world_size: int) -> tuple[dict[str, Tensor], int]:
    model, optimizer, scheduler, accumulate = case.model, case.optimizer, case.scheduler, case.accumulate
    ddp = DistributedDataParallel(model) if world_size > 1 else model
    scaler = torch.amp.GradScaler("cpu", enabled=case.precision == "fp16")
    averaged = None
    if case.ema is not None:
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(case.ema), use_buffers=True)
    sampler = smddp.ElasticSampler(
        SAMPLES, global_batch=GLOBAL_BATCH, rank=rank, world_size=world_size, accumulate=accumulate, seed=SEED
    )
    inputs, targets = dataset().tensors
    seed_noise(rank)
    skipped = 0
    for epoch in range(EPOCHS):
        sampler.start_epoch(epoch)
        stepped = False
        for number, indices in enumerate(sampler, 1):
            steps = number % accumulate == 0
            with nullcontext() if steps or world_size == 1 else ddp.no_sync():
                with torch.autocast("cpu", dtype=_DTYPES[case.precision], enabled=case.precision != "fp32"):
                    output = ddp(inputs[indices])
                loss = nn.functional.mse_loss(output.float(), targets[indices]) / accumulate
                scaler.scale(loss).backward()
            if not steps:
                continue
            if case.clip is not None:
                scaler.unscale_(optimizer)
            if case.clip == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            elif case.clip == "value":
                nn.utils.clip_grad_value_(model.parameters(), 0.1)
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if scaler.get_scale() < scale:
                skipped += 1
                continue
            stepped = True
            if case.schedule == "step":
                scheduler.step()
            if averaged is not None:
                averaged.update_parameters(model)
        if case.schedule == "epoch" and stepped:
            scheduler.step()
    ema = None if averaged is None else averaged.module
    return case.result(ema, scaler, with_buffers=rank == 0), skipped


def by_trainer(case: Case, job: smddp.Job, stop_at: float = math.inf) -> dict[str, Tensor]:
    """Trains until the end, or until a stop that comes with the micro-batch of this number."""
    clip = {} if case.clip is None else {"clip_norm": 1.0} if case.clip == "norm" else {"clip_value": 0.1}
    trainer = smddp.Trainer(
        job,
        case.model,
        case.optimizer,
        scheduler=case.scheduler,
        schedule_each=case.schedule or "step",
        precision=case.precision,
        accumulate=case.accumulate,
        ema=case.ema,
        on_nonfinite="raise" if case.clip == "norm" else None,  # which takes the norm by itself, and changes no bit
        seed=SEED,
        **clip,
    )
    loader = trainer.loader(dataset(), batch_size=GLOBAL_BATCH)
    seed_noise(job.cluster.rank)
    trainer.resume()
    given = itertools.count(trainer.steps * case.accumulate)
    for _ in trainer.epochs(EPOCHS):
        for inputs, targets in trainer.batches(loader):
            stop_signal.requested = next(given) >= stop_at
            trainer.step(nn.functional.mse_loss(trainer.model(inputs), targets))
    ema = None if trainer.ema is None else unwrapped(trainer.ema)
    scaler = trainer._parts.state.get("scaler")
    return case.result(ema, scaler, with_buffers=job.cluster.is_main)


def stopped_and_resumed(row: tuple[Any, ...], job: smddp.Job, draw: random.Random) -> dict[str, Tensor]:
    micro_batches = EPOCHS * SAMPLES // GLOBAL_BATCH * row[OPTIONS.index("accumulate")]
    for stop_at in sorted(draw.sample(range(micro_batches - 4), 2)):
        try:
            by_trainer(Case(row), job, stop_at=stop_at)
        except Stopped:
            stop_signal.requested = False
        else:
            raise AssertionError("it was to stop")
    return by_trainer(Case(row), job)


def differences(expected: dict[str, Tensor], found: dict[str, Tensor]) -> list[str]:
    return sorted(
        {name for name in expected if name not in found or not torch.equal(expected[name], found[name])}
        | (found.keys() - expected.keys())
    )


def main(job: smddp.Job) -> None:
    ticks = itertools.count()
    ranks.time = SimpleNamespace(monotonic=lambda: next(ticks) * 1e-6)  # the ranks look up after every other step
    for number, row in enumerate(CASES):
        expected, skipped = by_hand(Case(row), job.cluster.rank, job.cluster.world_size)

        def part(name: str, number: int = number) -> smddp.Job:
            return dataclasses.replace(job, checkpoint_dir=job.checkpoint_dir / f"{name}-{number}")

        found = by_trainer(Case(row), part("whole"))
        resumed = stopped_and_resumed(row, part("stopped"), random.Random(number))
        told = {
            "case": "-".join(map(str, row)),
            "by_trainer": differences(expected, found),
            "resumed": differences(expected, resumed),
            "skipped": skipped,
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    smddp.run(main)
