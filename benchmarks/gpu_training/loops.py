"""The same training by hand, by smddp, by Fabric and by Lightning: each takes a case, and tells its clock of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import smddp
from smddp.accelerator import synchronize
from smddp.job import Job

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

_LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
_OF_LIGHTNING = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass(slots=True, kw_only=True)
class Clock:
    """Measures the steps after those that warm up."""

    device: torch.device
    warm_up: int
    steps: int
    seconds: float = 0.0
    _done: int = 0
    _started: float = 0.0

    def step_done(self) -> None:
        """Count a step; wait for the GPU only where the measurement begins and ends."""
        self._done += 1
        if self._done == self.warm_up:
            self._started = self._now()
        elif self._done == self.warm_up + self.steps:
            self.seconds = self._now() - self._started

    def _now(self) -> float:
        synchronize(self.device)
        return time.perf_counter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is trained, and how."""

    model: Callable[[], nn.Module]
    batches: Iterable[tuple[Tensor, Tensor]]
    device: torch.device
    precision: Precision
    compile: bool
    clock: Clock
    directory: Path
    """Empty, for what a contestant wants to write."""

    def made(self) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
        """Return the model on its device, the same compiled if it shall be, and its optimizer."""
        torch.manual_seed(0)
        model = self.model().to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        # On the CPU only the code is tried: what inductor makes there is of no interest, and takes long.
        backend = "inductor" if self.device.type == "cuda" else "eager"
        called: Any = torch.compile(model, backend=backend) if self.compile else model
        return model, called, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def by_hand(case: Case) -> None:
    """PyTorch's own loop."""
    _, model, optimizer = case.made()
    low = _LOW.get(case.precision)
    scaler = torch.amp.GradScaler(case.device.type, enabled=case.precision == "fp16")
    for images, labels in case.batches:
        on_device = images.to(case.device, non_blocking=True), labels.to(case.device, non_blocking=True)
        with torch.autocast(case.device.type, low, enabled=low is not None):
            loss = cross_entropy(model(on_device[0]), on_device[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        case.clock.step_done()


def with_smddp(case: Case) -> None:
    """Train by the Trainer as it is by default."""
    _, model, optimizer = case.made()
    job = Job.detect({"SMDDP_RUN_DIR": str(case.directory)})
    trainer = smddp.Trainer(job, model, optimizer, precision=case.precision)
    for images, labels in trainer.batches(case.batches):
        trainer.step(cross_entropy(trainer.model(images), labels))
        case.clock.step_done()
    smddp.leave()


def with_fabric(case: Case) -> None:
    """Lightning Fabric."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator=case.device.type, devices=1, precision=_OF_LIGHTNING[case.precision])
    _, called, plain = case.made()
    model, optimizer = fabric.setup(called, plain)
    for images, labels in case.batches:
        on_device = fabric.to_device((images, labels))
        fabric.backward(cross_entropy(model(on_device[0]), on_device[1]))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        case.clock.step_done()


def with_lightning(case: Case) -> None:
    """Lightning's Trainer, without loggers, checkpoints and progress bar."""
    import lightning.pytorch as lightning

    _, called, optimizer = case.made()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = called

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            images, labels = batch
            return cross_entropy(self.model(images), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

        def on_train_batch_end(self, *_: Any) -> None:
            case.clock.step_done()

    trainer = lightning.Trainer(
        accelerator=case.device.type,
        devices=1,
        precision=_OF_LIGHTNING[case.precision],
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), Loader(case.batches))


class Loader:
    """Batches as an iterable of their own kind: Lightning takes a list for several loaders."""

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        return iter(self._batches)


LOOPS: dict[str, tuple[str, Callable[[Case], None]]] = {
    "by hand": ("torch", by_hand),
    "smddp": ("smddp", with_smddp),
    "Fabric": ("lightning", with_fabric),
    "Lightning": ("lightning", with_lightning),
}
"""By name: the package that it needs, and the loop."""
