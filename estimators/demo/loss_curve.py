"""Draw the loss over the attempts of one job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_COLOURS = ("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One logged step."""

    attempt: int
    """1 before the first interruption, 2 after it, and so on."""
    step: int
    seconds: float
    """Seconds since the job was submitted."""
    loss: float


def save_loss_curve(points: Sequence[Point], path: Path) -> None:
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
