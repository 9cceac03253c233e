"""The plot of a job's metrics: a matplotlib figure that a notebook shows by itself."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from estimators.errors import EstimatorError

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

_PANEL_INCHES = 2.2
_SCREEN_DPI, _SHARPNESS = 80, 2
"""Pixels an inch of a shown picture, and the factor by which its file has more, for screens with small pixels."""


class MetricFigure(Figure):
    """A figure of its own canvas, which no pyplot holds. A notebook shows it as a picture."""

    def __init__(self, *, inches: tuple[float, float]) -> None:
        super().__init__(figsize=inches, layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the picture, and its size on the screen. Its background is white in a dark notebook, too."""
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=_SCREEN_DPI * _SHARPNESS, facecolor="white")
        width, height = (round(inches * _SCREEN_DPI) for inches in self.get_size_inches())
        return picture.getvalue(), {"width": width, "height": height}


def plot(frame: pandas.DataFrame, metrics: Sequence[str], begun: Sequence[datetime], title: str) -> MetricFigure:
    """Draw each of `metrics`, or all, in its own panel: over the steps, or over time if any value has no step.

    At each time in `begun` there is a mark, and the curve has a gap. Raise EstimatorError if a metric or all values are
    absent.
    """
    known = list(dict.fromkeys(frame["metric"]))
    if not known:
        raise EstimatorError(
            f"{title} has no metric to plot: no line of its log holds one so far, by the job's metric definitions."
        )
    if unknown := [name for name in metrics if name not in known]:
        raise EstimatorError(f"{title} has no values of {', '.join(unknown)}; it has those of {', '.join(known)}.")
    names = list(dict.fromkeys(metrics)) or known
    shown = frame[frame["metric"].isin(names)]
    over = "time" if shown["step"].isna().any() else "step"
    figure = MetricFigure(inches=(9, 0.6 + _PANEL_INCHES * len(names)))
    panels = figure.subplots(len(names), squeeze=False, sharex=True)[:, 0]
    for name, axes in zip(names, panels, strict=True):
        _draw(axes, shown[shown["metric"] == name], over, begun)
        axes.set_ylabel(name)
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_title(title, loc="left")
    panels[-1].set_xlabel(over)
    return figure


def _draw(axes: Axes, rows: pandas.DataFrame, over: str, begun: Sequence[datetime]) -> None:
    attempt = sum((rows["time"] >= time).astype(int) for time in begun) if begun else 0 * rows["value"]
    for number, part in rows.groupby(attempt):
        x = part[over].astype("float64") if over == "step" else part[over]
        few = len(part) == 1  # a line through a single point is invisible
        axes.plot(x, part["value"], color="#1f6feb", linewidth=1.4, marker="." if few else None)
        if number:
            axes.axvline(x.iloc[0], color="#d9480f", linestyle="--", linewidth=1)
            label = f"attempt {int(number) + 1}"
            axes.annotate(label, (x.iloc[0], 1), xycoords=("data", "axes fraction"), fontsize=8, color="#d9480f")
