"""docs/console.png and docs/resume-loss.png, from jobs that really trained: ``python -m tests.pictures``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from estimators.console.jobs import JobSource
from estimators.console.server import Console
from estimators.demo.run import digits_estimator, write_digits
from estimators.job_handle.events import MetricValue
from estimators.local import LocalSageMaker
from estimators.training_job import TrainingJob
from tests.chromium import chromium

DOCS = Path(__file__).parents[1] / "docs"
_EPOCHS, _INTERRUPTED_AT = 6, 220
_SMOOTHED = 9
"""Logged values in one mean of the curve of the loss."""


def main() -> None:
    """Train digits on two hosts, without an interruption and with one; take the pictures of both."""
    with LocalSageMaker() as platform, tempfile.TemporaryDirectory() as directory:
        write_digits(Path(directory, "digits.npz"))
        bucket, s3 = platform.default_bucket, platform.boto_session.client("s3")
        s3.upload_file(f"{directory}/digits.npz", bucket, "digits/digits.npz")
        whole = _losses(_trained(platform, "digits-whole"))
        job = _trained(platform, "digits-spot", interrupted_at=_INTERRUPTED_AT)
        _draw(whole, _losses(job), DOCS / "resume-loss.png")
        source = JobSource(name="local platform · .smddp", session=platform.boto_session)
        with Console(source) as console, chromium() as browser:
            page = browser.new_page(color_scheme="light", viewport={"width": 1160, "height": 800})
            page.goto(console.link)
            page.get_by_text(job.name).click()
            page.get_by_text("log", exact=True).click()
            page.wait_for_selector("svg.chart[data-log]")
            page.screenshot(path=DOCS / "console.png")


def _trained(platform: LocalSageMaker, name: str, *, interrupted_at: int | None = None) -> TrainingJob:
    """Train to the end; take the hosts away once, after a step."""
    checkpoints = f"s3://{platform.default_bucket}/checkpoints/{name}"
    estimator = digits_estimator(platform, checkpoints, epochs=_EPOCHS)
    job = estimator.fit({"training": f"s3://{platform.default_bucket}/digits/"}, job_name=name, wait=False)
    for event in job.events():
        if interrupted_at is not None and isinstance(event, MetricValue) and (event.step or 0) >= interrupted_at:
            interrupted_at = None
            platform.interrupt(job.name)
    job.wait(logs=False)
    return job


def _losses(job: TrainingJob) -> pandas.Series:
    """The logged losses by step."""
    frame = job.metrics()
    return frame[frame.metric == "loss"].set_index("step")["value"]


def _draw(whole: pandas.Series, interrupted: pandas.Series, path: Path) -> None:
    """Draw both losses, smoothed, over the steps."""
    same = whole.index.intersection(interrupted.index)
    print(f"{len(same)} logged steps, at most {(whole[same] - interrupted[same]).abs().max():g} apart")
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for losses, label, style in (
        (whole, "uninterrupted", {"color": "#f59f00", "linewidth": 7, "alpha": 0.45}),
        (interrupted, "both hosts lost once, and resumed", {"color": "#1f6feb", "linewidth": 1.6}),
    ):
        smoothed = losses.rolling(_SMOOTHED, min_periods=1).mean()
        axes.plot(smoothed.index, smoothed, label=label, solid_capstyle="round", **style)
    axes.axvline(_INTERRUPTED_AT, color="#d9480f", linestyle="--", linewidth=1.2)
    axes.annotate("spot interruption", (_INTERRUPTED_AT + 4, 0.9), xycoords=("data", "axes fraction"), color="#d9480f")
    axes.set(yscale="log", xlabel="step", ylabel=f"training loss, mean of {_SMOOTHED} values")
    axes.set_title("The same training, with and without an interruption", loc="left")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
