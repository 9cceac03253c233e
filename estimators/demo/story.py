"""The demo, told from first to last line: platform, data, job, interruption, resume, result."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from estimators import Estimator
from estimators.demo.digits import write_digits
from estimators.demo.loss_curve import Point, save_loss_curve
from estimators.local import LocalSageMaker

BATCH_SIZE = 64
TARGET_ACCURACY = 0.97
_METRICS = re.compile(r"\bstep=(?P<step>\d+) epoch=(?P<epoch>\d+) (?P<values>.*)")
_VALUE = re.compile(r"(\w+)=([-+0-9.eE]+|nan|inf)")


@dataclass
class Journey:
    """What was seen of the job so far: the points of the curve, and when it was interrupted."""

    started: float = field(default_factory=time.monotonic)
    points: list[Point] = field(default_factory=list)
    accuracy: float | None = None
    life: int = 1

    def read(self, line: str) -> bool:
        """Take in one log line; True if it held a new point of the loss curve."""
        found = _METRICS.search(line)
        if not found:
            return False
        values = {name: float(value) for name, value in _VALUE.findall(found["values"])}
        self.accuracy = values.get("accuracy", self.accuracy)
        if "loss" not in values:
            return False
        self.points.append(
            Point(
                life=self.life,
                step=int(found["step"]),
                seconds=time.monotonic() - self.started,
                loss=values["loss"],
            )
        )
        return True

    def lost(self) -> tuple[float, int]:
        """Seconds from the last step before the interruption to the first new one, and steps done twice."""
        before = [p for p in self.points if p.life == 1][-1]
        again = [p for p in self.points if p.life == 2 and p.step <= before.step]
        first_new = next(p for p in self.points if p.life == 2 and p.step > before.step)
        return first_new.seconds - before.seconds, len(again)


def tell(output: Path, *, epochs: int) -> None:
    """Run the demo and leave the model, the checkpoints and the loss curve in ``output``.

    Raises:
        SystemExit: With code 1 if the accuracy stays below ``TARGET_ACCURACY``.
    """
    console = Console(highlight=False)
    output.mkdir(parents=True, exist_ok=True)
    console.print("[bold]smddp demo[/bold]  two hosts, spot, no AWS, no Docker\n")
    began = time.monotonic()
    with LocalSageMaker() as sagemaker:
        _say(console, began, f"an embedded SageMaker answers at {sagemaker.endpoint_url}")
        s3 = sagemaker.boto_session.client("s3")
        prefix = f"s3://{sagemaker.default_bucket}/digits"
        file = output / "digits.npz"
        images = write_digits(file)
        s3.upload_file(str(file), sagemaker.default_bucket, "digits/digits.npz")
        _say(console, began, f"{images:,} digits uploaded to {prefix}")

        checkpoints = f"s3://{sagemaker.default_bucket}/checkpoints"
        estimator = Estimator(
            entry_point="image_classification.py",
            source_dir=str(entrypoints_directory()),
            role=sagemaker.role,
            instance_type="ml.g5.xlarge",
            instance_count=2,
            distribution="torchrun",
            use_spot_instances=True,
            max_run=600,
            max_wait=1200,
            checkpoint_s3_uri=checkpoints,
            base_job_name="smddp-demo",
            hyperparameters={"epochs": epochs, "batch_size": BATCH_SIZE, "log_every": 1},
            sagemaker_session=sagemaker.session,
        )
        journey = Journey()
        job = estimator.fit({"training": prefix}, wait=False)
        _say(console, began, f"job {job.name} submitted: 2 × ml.g5.xlarge, spot, torchrun")
        _follow(console, began, sagemaker, job, journey, epochs=epochs, images=images)
        _fetch(sagemaker, job.model_data, output / "model.tar.gz")
        newest = _fetch_prefix(sagemaker, checkpoints, output / "checkpoints")

    curve = output / "loss.png"
    save_loss_curve(journey.points, curve)
    file.unlink()
    seconds, again = journey.lost()
    accuracy = journey.accuracy or 0.0
    console.print()
    for name, value in (
        ("test accuracy", f"[bold]{accuracy:.4f}[/bold] (at least {TARGET_ACCURACY} expected)"),
        ("lost to the interruption", f"{seconds:.1f} s, {again} steps done twice"),
        ("model", str(output / "model.tar.gz")),
        ("checkpoints", f"{output / 'checkpoints'} ({newest} files)"),
        ("loss curve", str(curve)),
        ("in all", f"{time.monotonic() - began:.0f} s"),
    ):
        console.print(f"  {name:<26}{value}", soft_wrap=True)
    if accuracy < TARGET_ACCURACY:
        raise SystemExit(1)


def entrypoints_directory() -> Path:
    """The directory of training scripts: inside the installed package, or at the top of a checkout."""
    installed = Path(__file__).parents[1] / "entrypoints"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "entrypoints"


def _follow(
    console: Console,
    began: float,
    sagemaker: LocalSageMaker,
    job: Any,
    journey: Journey,
    *,
    epochs: int,
    images: int,
) -> None:
    """Read the job's log to its end; interrupt it once, in mid-epoch, after a third of the run."""
    steps_an_epoch = round(images * 0.8) // BATCH_SIZE
    total, interrupt_at = epochs * steps_an_epoch, (epochs // 3) * steps_an_epoch + steps_an_epoch // 2
    interrupted = False
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task("starting two hosts", total=total)
        for _host, line in job.logs():
            if "resum" in line and interrupted and journey.life == 1:
                journey.life = 2
                _say(console, began, line.strip())
            if not journey.read(line):
                continue
            point = journey.points[-1]
            if point.step == 1:
                _say(console, began, "training: the first step is done")
            progress.update(bar, completed=point.step, description=f"life {point.life}, loss {point.loss:.4f}")
            if not interrupted and point.step >= interrupt_at:
                interrupted = True
                sagemaker.interrupt(job.name)
                epoch = point.step // steps_an_epoch
                _say(console, began, f"spot interruption at step {point.step}, in the middle of epoch {epoch}")
                progress.update(bar, description="interrupted: checkpoint, new hosts")
        job.wait(logs=False)
    _say(console, began, f"job {job.status}")


def _say(console: Console, began: float, text: str) -> None:
    console.print(f"  [dim]{time.monotonic() - began:5.1f} s[/dim]  {text}", soft_wrap=True)


def _fetch(sagemaker: LocalSageMaker, uri: str, path: Path) -> None:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    sagemaker.boto_session.client("s3").download_file(bucket, key, str(path))


def _fetch_prefix(sagemaker: LocalSageMaker, uri: str, directory: Path) -> int:
    """Download every object below ``uri``; how many there were."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    client, count = sagemaker.boto_session.client("s3"), 0
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for item in page.get("Contents", []):
            path = directory / item["Key"].removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, item["Key"], str(path))
            count += 1
    return count
