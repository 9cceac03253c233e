"""The logs of transformers' Trainer as the job's metric lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from smddp.metrics.lines import report

if TYPE_CHECKING:
    from transformers import TrainerState

_NAMES = {"learning_rate": "lr"}


class MetricsCallback(TrainerCallback):  # type: ignore[misc]  # mypy does not check transformers
    """Log ``step=20 epoch=0 loss=0.31 lr=0.0004 grad_norm=1.2`` for each of the Trainer's logs, on rank 0.

    The Estimator's metric definitions match these names. transformers' other names, such as ``eval_loss``, are
    unchanged: give the Estimator definitions of them to see them in SageMaker.

    Examples:
        >>> from transformers import TrainerState
        >>> callback = MetricsCallback()
        >>> callback.on_log(None, TrainerState(epoch=0.5), None, logs={"loss": 0.31})
    """

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: dict[str, Any], **_: Any) -> None:
        """Log a metric line."""
        del args, control
        numbers = {_NAMES.get(name, name): value for name, value in logs.items() if isinstance(value, int | float)}
        numbers.pop("epoch", None)  # a fraction; each line begins with the whole epoch
        if state.is_world_process_zero and numbers:
            report(state.global_step, int(state.epoch or 0), numbers)
