"""ResNet-50 on one GPU: smddp against a loop by hand, Fabric and Lightning, in each precision, compiled and not.

For each case: images a second and what part of the loop by hand's that is, the part of the GPU's peak (MFU, where the
peak is known), and the part of the time in which no kernel ran. Then what a checkpoint holds training up.

    python benchmarks/gpu.py [--batch-size 256] [--steps 50] [--input synthetic real] [--precision fp32 tf32 bf16 fp16]

Without a GPU it says so. ``--device cpu --small`` runs the same code with a tiny model: its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from gpu_training.loops import LOOPS, Case, Clock, Precision
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.flop_counter import FlopCounterMode
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models import resnet50

import smddp
from smddp.accelerator import device_kind, device_name, has_streams
from smddp.metrics.device_use import peak_flops

WARM_UP = 10
PROFILED_STEPS = 10
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")

Batch = tuple[Tensor, Tensor]

FILES = 256
CLASSES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all cases have in common."""

    device: torch.device
    batch_size: int
    size: int
    steps: int
    warm_up: int
    workers: int
    jpegs: Path
    small: bool

    def model(self) -> nn.Module:
        """ResNet-50, or something with the same kinds of layers that a CPU trains at once."""
        if not self.small:
            return resnet50(num_classes=CLASSES)
        layers = [nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(4, CLASSES))

    def batches(self, kind: str, count: int) -> Iterable[Batch]:
        """So many batches: synthetic or real ones."""
        if kind == "synthetic":
            return synthetic(self.batch_size, self.size, count, self.device)
        pin = has_streams(self.device)
        return read(self.jpegs, self.batch_size, self.size, count, workers=self.workers, pin=pin)


def synthetic(batch_size: int, size: int, batches: int, device: torch.device) -> list[Batch]:
    """Return the same batch of random images again and again, on the device: no input is waited for."""
    images = torch.randn(batch_size, 3, size, size, device=device).to(memory_format=torch.channels_last)
    return [(images, torch.randint(CLASSES, (batch_size,), device=device))] * batches


def write_jpegs(directory: Path, size: int) -> None:
    """Write random images, a seventh larger than what is cropped of them, in a directory for each class."""
    random = np.random.default_rng(0)
    for number in range(FILES):
        folder = directory / str(number % CLASSES)
        folder.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(256, size=(16, 16, 3), dtype=np.uint8)  # noise of single pixels is not a photograph
        Image.fromarray(coarse).resize((size * 8 // 7,) * 2).save(folder / f"{number}.jpg", quality=90)


def read(directory: Path, batch_size: int, size: int, batches: int, *, workers: int, pin: bool) -> Iterable[Batch]:
    """Return the files in random order, as often as it takes, cropped and turned as for ImageNet."""
    crop = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = ImageFolder(str(directory), transforms.Compose([*crop, transforms.Normalize((0.5,) * 3, (0.25,) * 3)]))
    sampler = RandomSampler(dataset, replacement=True, num_samples=batch_size * batches)
    loader: DataLoader[Batch] = DataLoader(
        dataset, batch_size, sampler=sampler, num_workers=workers, pin_memory=pin, drop_last=True
    )
    return loader


def run(
    settings: Settings, name: str, kind: str, precision: Precision, *, compiled: bool
) -> tuple[float, float | None]:
    """Train one case; return images a second, and the part of the time in which the GPU had nothing to do."""
    use_tf32(precision == "tf32")
    _, loop = LOOPS[name]

    def train(warm_up: int, steps: int) -> float:
        clock = Clock(device=settings.device, warm_up=warm_up, steps=steps)
        # The Trainer's ledger is written until the process ends, also while the directory is removed.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            case = Case(
                model=settings.model,
                batches=settings.batches(kind, warm_up + steps),
                device=settings.device,
                precision=precision,
                compile=compiled,
                clock=clock,
                directory=Path(directory),
            )
            loop(case)
        return clock.seconds

    seconds = train(settings.warm_up, settings.steps)
    idle = None
    if settings.device.type == "cuda":
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            profiled_seconds = train(settings.warm_up, PROFILED_STEPS)
        idle = 1 - busy_seconds(profiler, last=profiled_seconds) / profiled_seconds
    return settings.steps * settings.batch_size / seconds, idle


def possible(device: torch.device, precisions: list[Precision]) -> list[Precision]:
    """Return those that the device has: TF32 and bf16 came with Ampere, and the CPU has no TF32."""
    if device.type == "cuda":
        has = PRECISIONS if torch.cuda.get_device_capability(device) >= (8, 0) else ("fp32", "fp16")
    else:
        has = ("fp32", "bf16", "fp16")
    return [precision for precision in precisions if precision in has]


def use_tf32(allowed: bool) -> None:
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def busy_seconds(profiler: profile, *, last: float) -> float:
    """For how long a kernel or a copy ran on the GPU, within so many seconds before the last one ended."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()  # type: ignore[no-untyped-call]
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    return union_seconds(spans, last=last)


def union_seconds(spans: list[tuple[float, float]], *, last: float) -> float:
    """Return the length of the union of spans of microseconds, in order, within so many seconds before the end."""
    until = max((end for _, end in spans), default=0.0)
    reached, busy = until - last * 1e6, 0.0
    for start, end in spans:
        if end > reached:
            busy += end - max(start, reached)
            reached = end
    return busy / 1e6


def flops_of_image(settings: Settings) -> float:
    """Floating point operations of an image's forward and backward pass, counted by PyTorch."""
    model = settings.model().to(settings.device)
    (images, labels), *_ = synthetic(settings.batch_size, settings.size, 1, settings.device)
    with FlopCounterMode(display=False) as counter:
        cross_entropy(model(images), labels).backward()
    return counter.get_total_flops() / settings.batch_size


def peak_of(device: torch.device, precision: Precision) -> float | None:
    """Return the peak of the device in operations a second, where it is known."""
    if device.type != "cuda":
        return None
    use_tf32(precision == "tf32")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    return peak_flops(torch.cuda.get_device_name(device), dtype)


def checkpoint_stall(settings: Settings) -> tuple[float, float]:
    """For how many seconds a save holds training up, and its megabytes: the third one, when the memory is there."""
    model = settings.model().to(settings.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    (images, labels), *_ = synthetic(settings.batch_size, settings.size, 1, settings.device)
    state = {"model": model, "optimizer": optimizer}
    with tempfile.TemporaryDirectory() as directory, smddp.Checkpointer(directory, state) as checkpointer:
        for step in range(1, 4):
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            checkpointer.save(step)
            report = checkpointer.wait()
    assert report is not None
    return report.stall_seconds, report.size / 1e6


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    arguments.add_argument("--device", choices=("cuda", "cpu", device_kind() or "cpu"), default="cuda")
    arguments.add_argument("--loop", nargs="+", choices=list(LOOPS), default=list(LOOPS))
    arguments.add_argument("--small", action="store_true", help="a tiny model and few steps, to try the code")
    arguments.add_argument("--batch-size", type=int, default=256)
    arguments.add_argument("--steps", type=int, default=50, help="steps of one measurement")
    arguments.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that read the JPEGs")
    arguments.add_argument("--input", nargs="+", choices=("synthetic", "real"), default=["synthetic", "real"])
    arguments.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    options = arguments.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: nothing was measured")
        return
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")

    with tempfile.TemporaryDirectory() as directory:
        small = options.small
        settings = Settings(
            device=torch.device("cpu") if options.device == "cpu" else torch.device(options.device, 0),
            batch_size=4 if small else options.batch_size,
            size=32 if small else 224,
            steps=2 if small else options.steps,
            warm_up=1 if small else WARM_UP,
            workers=0 if small else options.workers,
            jpegs=Path(directory),
            small=small,
        )
        write_jpegs(settings.jpegs, settings.size)
        report(settings, options.loop, options.input, possible(settings.device, options.precision))


def report(settings: Settings, loops: list[str], kinds: list[str], precisions: list[Precision]) -> None:
    """Measure all cases, and print a line for each."""
    name = "CPU" if settings.device.type == "cpu" else device_name(settings.device)
    print(f"{name}, batches of {settings.batch_size}, {settings.steps} steps; torch {torch.__version__}", end=", ")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    here = [each for each, (package, _) in LOOPS.items() if each in loops and find_spec(package) is not None]
    flops = flops_of_image(settings)
    print(
        f"{'input':11}{'precision':10}{'compiled':9}{'loop':11}{'images/s':>10}{'of by hand':>12}{'MFU':>7}{'idle':>7}"
    )
    for kind in kinds:
        for precision in precisions:
            peak = peak_of(settings.device, precision)
            for compiled in (False, True):
                measure = partial(run, settings, kind=kind, precision=precision, compiled=compiled)
                base = 0.0
                for loop in here:
                    rate, idle = measure(loop)
                    base = base or rate
                    mfu = f"{rate * flops / peak:.1%}" if peak else "-"
                    idle_share = "-" if idle is None else f"{idle:.1%}"
                    print(f"{kind:11}{precision:10}{'yes' if compiled else 'no':9}{loop:11}{rate:10.1f}", end="")
                    print(f"{rate / base:12.3f}{mfu:>7}{idle_share:>7}")
    stall, megabytes = checkpoint_stall(settings)
    print(f"\na checkpoint of {megabytes:.0f} MB held training up for {stall * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
