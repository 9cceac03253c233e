"""The metric lines of a run in the log, by rank 0.

A metric line is ``step=120 epoch=4/5 loss=0.1234 lr=0.05 samples_per_second=8123``, for people and for SageMaker's
metric definitions: a regular expression such as ``loss=([0-9.eE+-]+)`` finds each value. Lines count epochs from 1,
all else from 0. This file only formats and counts: `smddp.training.run_report` chooses the metrics and when to report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from smddp.process.log_format import log_or_print

logger = logging.getLogger(__name__)

_OF_THE_LINE = ("trainer", "step", "epoch")


def check_names(metrics: Mapping[str, object]) -> None:
    """Raise ValueError for a metric name that starts every line anyway, or contains a space or ``=``."""
    if taken := [
        name for name in metrics if name in _OF_THE_LINE or any(each.isspace() or each == "=" for each in name)
    ]:
        raise ValueError(
            f"no metric can be called {', '.join(map(repr, taken))}: each line begins with {', '.join(_OF_THE_LINE)}, "
            "and a name has neither spaces nor '='; choose another name"
        )


def shown_epoch(epoch: int, epochs: int | None = None) -> str:
    """Return an epoch, which code counts from 0, for a person, who counts from 1.

    Examples:
        >>> shown_epoch(0, 3), shown_epoch(3, 3), shown_epoch(3)
        ('1/3', '3/3', '4')
    """
    return str(epoch + 1) if epochs is None else f"{min(epoch + 1, epochs)}/{epochs}"


def metrics_line(
    step: int, epoch: int, metrics: Mapping[str, float], *, epochs: int | None = None, trainer: str | None = None
) -> str:
    """Return the metric line; numbers keep four digits, and all digits before the point.

    ``epoch`` counts from 0. ``epochs`` is the number of epochs, if known. The name of the trainer, in a job with
    several, comes first.
    """
    return " ".join(
        [
            *([] if trainer is None else [f"trainer={trainer}"]),
            f"step={step}",
            f"epoch={shown_epoch(epoch, epochs)}",
            *(f"{name}={_digits(value)}" for name, value in metrics.items()),
        ]
    )


def report(
    step: int, epoch: int, metrics: Mapping[str, float], *, epochs: int | None = None, trainer: str | None = None
) -> None:
    """Log or print the line of `metrics_line`; call it on rank 0 only."""
    log_or_print(logger, metrics_line(step, epoch, metrics, epochs=epochs, trainer=trainer))


class StepRate:
    """Optimizer steps a second since the last lap or restart."""

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, step: int) -> None:
        """Count from this step and this moment."""
        self._step, self._time = step, time.monotonic()

    def lap(self, step: int) -> float:
        """Return steps a second since the last lap or restart."""
        earlier_step, earlier_time = self._step, self._time
        self.restart(step)
        return (step - earlier_step) / max(self._time - earlier_time, 1e-9)


def _digits(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.4g}"
