"""The values of a job's metrics as a table, and as a plot that marks interruptions."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from estimators.errors import EstimatorError
from estimators.job_handle.events import MetricValue, StatusChange

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = [field.name for field in dataclasses.fields(MetricValue)]
_BROKEN_OFF = frozenset({"Interrupted", "Restarting"})
_PANEL_INCHES = 2.2


def table(values: Iterable[MetricValue]) -> pandas.DataFrame:
    """Return one row for each value, in order; step and epoch are integers if all are whole, and NA if unknown.

    Raise EstimatorError if pandas is not installed.
    """
    library = _required("pandas", "metrics()", "it comes with the SageMaker SDK: pip install pandas")
    frame: pandas.DataFrame = library.DataFrame([dataclasses.astuple(value) for value in values], columns=_COLUMNS)
    frame["time"] = library.to_datetime(frame["time"], utc=True)
    for name in ("step", "epoch"):
        numbers = frame[name].astype("Float64")
        whole = (numbers.dropna() % 1 == 0).all()
        frame[name] = numbers.astype("Int64") if whole else numbers
    frame["value"] = frame["value"].astype("float64")
    return frame


def attempts_begun(changes: Sequence[StatusChange]) -> list[datetime]:
    """Return the times at which training resumed after an interruption or a restart."""
    begun, broken_off = [], False
    for change in changes:
        if change.status in _BROKEN_OFF:
            broken_off = True
        elif broken_off and change.status == "Training":
            begun.append(change.time)
            broken_off = False
    return begun


def plot(frame: pandas.DataFrame, metrics: Sequence[str], begun: Sequence[datetime], title: str) -> Figure:
    """Draw each of `metrics`, or all, in its own panel: over the steps, or over time if any value has no step.

    At each time in `begun` there is a mark, and the curve has a gap. Raise EstimatorError if a metric or all values are
    absent, or matplotlib is not installed.
    """
    known = list(dict.fromkeys(frame["metric"]))
    if not known:
        raise EstimatorError(
            f"{title} has no metric to plot: no line of its log holds one so far, by the job's metric definitions."
        )
    if unknown := [name for name in metrics if name not in known]:
        raise EstimatorError(f"{title} has no values of {', '.join(unknown)}; it has those of {', '.join(known)}.")
    _required("matplotlib", "plot()", "pip install matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(metrics)) or known
    shown = frame[frame["metric"].isin(names)]
    over = "time" if shown["step"].isna().any() else "step"
    figure = Figure(figsize=(9, 0.6 + _PANEL_INCHES * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
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


def _required(module: str, call: str, remedy: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as fault:
        raise EstimatorError(
            f"{call} needs {module}, which can't be imported ({fault}). Install it: {remedy}"
        ) from fault
