"""The demo from beginning to end: platform, data, job, interruption, resume, result."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
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
from estimators.console.jobs import JobSource
from estimators.console.server import Console as Pages
from estimators.errors import TrainingJobFailed
from estimators.job_handle.events import LAST_STATUSES, StatusChange
from estimators.local import LocalSageMaker
from estimators.log_reader import LogLine
from estimators.training_job import TrainingJob
from smddp.display_text import counted, shown_text
from smddp.process.terminal_line import is_watched

BATCH_SIZE = 16  # small enough that an epoch takes a second, and the interruption comes in the middle of one
TARGET_ACCURACY = 0.97
_METRICS = re.compile(r"\bstep=(?P<step>\d+) epoch=(?P<epoch>\d+)\S* (?P<values>.*)")
_VALUE = re.compile(r"(\w+)=([-+0-9.eE]+|nan|inf)")
_EVENT = re.compile(r"(stopped|resumed) at step \d+, in epoch \d+")


@dataclass
class DemoState:
    """The demo's view of the job so far: the points of the curve, and the last accuracy."""

    submitted: float = field(default_factory=time.time)
    points: list[_Point] = field(default_factory=list)
    accuracy: float = 0.0
    attempt: int = 1
    status: str = "Pending"

    def read(self, line: LogLine) -> bool:
        """Parse one line of the log; return True if it contains a new point of the curve."""
        found = _METRICS.search(line.message)
        if not found:
            return False
        values = {name: float(value) for name, value in _VALUE.findall(found["values"])}
        self.accuracy = values.get("accuracy", self.accuracy)
        if "loss" not in values:
            return False
        seconds = line.timestamp / 1000 - self.submitted
        self.points.append(_Point(attempt=self.attempt, step=int(found["step"]), seconds=seconds, loss=values["loss"]))
        return True

    def lost(self) -> tuple[float, int]:
        """Return the seconds between the attempts (last step to first new step), and the number of steps done twice."""
        last = [point for point in self.points if point.attempt == 1][-1]
        second_attempt = [point for point in self.points if point.attempt == 2]
        first_new = next(point for point in second_attempt if point.step > last.step)
        return first_new.seconds - last.seconds, max(0, last.step + 1 - second_attempt[0].step)


def tell(output: Path, *, epochs: int, tell_wait: Callable[[str], object] = lambda _: None) -> None:
    """Run the demo; leave the model, the checkpoints and the loss curve in `output`.

    `tell_wait` is called with the text of each new wait.
    Raise SystemExit if the accuracy stays below ``TARGET_ACCURACY``, or if the job fails: then its log is in `output`.
    """
    console = Console(highlight=False)
    for chatty in ("sagemaker", "estimators"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with LocalSageMaker() as sagemaker, _pages(sagemaker) as pages:
        _say(console, began, f"an embedded SageMaker answers at {sagemaker.endpoint_url}")
        _say(console, began, f"watch it in a browser, while it runs: {pages.link}")
        s3 = sagemaker.boto_session.client("s3")
        prefix = f"s3://{sagemaker.default_bucket}/digits"
        file = output / "digits.npz"
        images = write_digits(file)
        s3.upload_file(str(file), sagemaker.default_bucket, "digits/digits.npz")
        _say(console, began, f"{images:,} digits uploaded to {prefix}")

        checkpoints = f"s3://{sagemaker.default_bucket}/checkpoints"
        estimator = digits_estimator(sagemaker, checkpoints, epochs=epochs)
        state = DemoState()
        job = estimator.fit({"training": prefix}, wait=False)
        _say(console, began, f"job {job.name} submitted: 2 × ml.g5.xlarge, spot, torchrun")
        try:
            _follow(console, began, sagemaker, job, state, epochs=epochs, images=images, tell_wait=tell_wait)
        except TrainingJobFailed as failure:
            log = output / f"{job.name}.log"
            log.write_text("".join(f"{host} {message}\n" for host, message in job.logs()))
            raise SystemExit(f"smddp demo: {job.name} failed: {_first_line(failure.reason)} Its log: {log}") from None
        _fetch(sagemaker, job.model_data, output / "model.tar.gz")
        newest = _fetch_prefix(sagemaker, checkpoints, output / "checkpoints")

    curve = output / "loss.png"
    _save_loss_curve(state.points, curve)
    file.unlink()
    seconds, again = state.lost()
    console.print()
    for name, value in (
        ("test accuracy", f"[bold]{state.accuracy:.4f}[/bold] (at least {TARGET_ACCURACY} expected)"),
        ("lost to the interruption", f"{seconds:.1f} s, {counted(again, 'step')} done twice"),
        ("model", str(output / "model.tar.gz")),
        ("checkpoints", f"{output / 'checkpoints'} ({counted(newest, 'file')})"),
        ("loss curve", str(curve)),
        ("in all", f"{time.monotonic() - began:.0f} s"),
    ):
        console.print(f"  {name:<26}{value}", soft_wrap=True)
    if state.accuracy < TARGET_ACCURACY:
        raise SystemExit(1)


def digits_estimator(sagemaker: LocalSageMaker, checkpoints: str, *, epochs: int) -> Estimator:
    """Return the demo's job: digits on two hosts, spot, with its checkpoints below a prefix."""
    return Estimator(
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
        hyperparameters={"epochs": epochs, "batch_size": BATCH_SIZE, "lr": 0.02, "log_every": 5},
        sagemaker_session=sagemaker.session,
    )


def entrypoints_directory() -> Path:
    """Return the directory of training scripts: inside the installed package, or at the top of a checkout."""
    installed = Path(__file__).parents[1] / "entrypoints"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "entrypoints"


def _follow(
    console: Console,
    began: float,
    sagemaker: LocalSageMaker,
    job: TrainingJob,
    state: DemoState,
    *,
    epochs: int,
    images: int,
    tell_wait: Callable[[str], object],
) -> None:
    """Read the job's log to its end; interrupt the job once, in mid-epoch, after a third of the run.

    Show the job's status from the interruption to the resume, when the log is silent.
    """
    steps_an_epoch = round(images * 0.8) // BATCH_SIZE
    # Lines arrive half a second late: an interrupt sent early in an epoch becomes SIGTERM in the middle of it.
    interrupt_at = (epochs // 3) * steps_an_epoch + steps_an_epoch // 10
    interrupted = False
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        console=console,
        disable=not is_watched(sys.stdout),
    ) as progress:
        bar = progress.add_task("starting two hosts", total=epochs * steps_an_epoch)
        for event in job.events():
            if isinstance(event, StatusChange):
                state.status = event.status
                has_ended = event.status in LAST_STATUSES
                tell_wait("the demo collects the results" if has_ended else f"the job is {event.status}")
                if interrupted and state.attempt == 1:
                    _say(console, began, f"job {event.status}")
                    progress.update(bar, description=f"interrupted, the job is {event.status}")
            if not isinstance(event, LogLine):
                continue
            if found := _EVENT.search(event.message):
                _say(console, began, found[0])
                state.attempt = 2 if found[0].startswith("resumed") else state.attempt
            if not state.read(event):
                continue
            point = state.points[-1]
            going = interrupted and point.attempt == 1
            seen = f"attempt {point.attempt}, loss {point.loss:.4f}"
            doing = f"interrupted, the job is {state.status}" if going else seen
            progress.update(bar, completed=point.step, description=doing)
            if not interrupted and point.step >= interrupt_at:
                interrupted = True
                _say(console, began, f"spot interruption: both hosts are told to go, after step {point.step}")
                sagemaker.interrupt(job.name)
    job.wait(logs=False)
    _say(console, began, f"job {job.status}")


def _pages(sagemaker: LocalSageMaker) -> Pages:
    """Return the web pages that show and stop the demo's jobs."""
    session, interrupt = sagemaker.boto_session, sagemaker.interrupt
    return Pages(JobSource(name="the demo", session=session, may_write=True, interrupt=interrupt))


def _first_line(reason: str) -> str:
    line = shown_text(reason).strip().partition("\n")[0]
    return line if line.endswith(".") else f"{line}."


def _say(console: Console, began: float, text: str) -> None:
    console.print(f"  [dim]{time.monotonic() - began:5.1f} s[/dim]  {text}", soft_wrap=True)


def _fetch(sagemaker: LocalSageMaker, uri: str, path: Path) -> None:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    sagemaker.boto_session.client("s3").download_file(bucket, key, str(path))


def _fetch_prefix(sagemaker: LocalSageMaker, uri: str, directory: Path) -> int:
    """Download every object below `uri`; return their number."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    client, count = sagemaker.boto_session.client("s3"), 0
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for item in page.get("Contents", []):
            path = directory / item["Key"].removeprefix(f"{prefix}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, item["Key"], str(path))
            count += 1
    return count


def write_digits(path: Path, *, test_share: float = 0.2) -> int:
    """Write scikit-learn's 1,797 images in a random but fixed split; return their number.

    Arrays: ``train_images`` and ``test_images`` uint8 [N, 8, 8] with values 0 to 16, ``train_labels`` and
    ``test_labels`` int64 [N] with values 0 to 9.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = np.split(order, [round(len(order) * test_share)])
    np.savez_compressed(
        path,
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
    )
    return len(images)


_COLOURS = ("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """One logged step."""

    attempt: int
    """1 before the first interruption, 2 after it, and so on."""
    step: int
    seconds: float
    """Seconds since the job was submitted."""
    loss: float


def _save_loss_curve(points: Sequence[_Point], path: Path) -> None:
    """Draw loss against time as a PNG, one colour for each attempt, with the gaps shaded.

    `points` has at least one point, in the order of logging; the directory of `path` exists.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    attempts = [[p for p in points if p.attempt == attempt] for attempt in sorted({p.attempt for p in points})]
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for attempt, colour in zip(attempts, _COLOURS, strict=False):
        label = f"attempt {attempt[0].attempt}: steps {attempt[0].step} to {attempt[-1].step}"
        axes.plot([p.seconds for p in attempt], [p.loss for p in attempt], color=colour, linewidth=1.4, label=label)
    for before, after in pairwise(attempts):
        start, end = before[-1].seconds, after[0].seconds
        axes.axvspan(start, end, color="#adb5bd", alpha=0.35, linewidth=0)
        axes.annotate(
            f"spot\ninterruption\n{end - start:.1f} s",
            xy=((start + end) / 2, 0.72),
            xycoords=("data", "axes fraction"),
            ha="center",
            fontsize=9,
            color="#343a40",
        )
    axes.set(yscale="log", xlabel="seconds since the job was submitted", ylabel="training loss")
    axes.set_title("One job, two hosts, one interruption", loc="left")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
