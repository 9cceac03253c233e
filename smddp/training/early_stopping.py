"""Early stopping: decide when a metric no longer improves. How a training ends is not decided here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from torch import Tensor

Mode = Literal["min", "max"]


class EarlyStopping:
    """Count evaluations without an improvement; keep the count in checkpoints by ``Trainer(state=...)``.

    Call ``update`` after the epoch's last evaluation, ``trainer.sum`` and ``trainer.gather``. A stop in one of these
    saves the count, and a resume repeats what follows the epoch's last batch: an earlier ``update`` counts twice.

    Args:
        patience: Stop after this many evaluations in a row without an improvement; from 1.
        mode: ``"min"`` if smaller values are better, ``"max"`` if larger ones are.
        min_delta: A value must be better by more than this to count as an improvement; from 0.

    Attributes:
        best: The best value so far, or None.

    Raises:
        ValueError: An argument is out of range.

    Examples:
        >>> stopping = EarlyStopping(patience=2)
        >>> [stopping.update(loss) for loss in (0.9, 0.7, 0.8, 0.75)]
        [False, False, False, True]
        >>> stopping.best
        0.7
    """

    def __init__(self, patience: int, mode: Mode = "min", min_delta: float = 0.0) -> None:
        if type(patience) is not int or patience < 1:
            raise ValueError(f"patience={patience!r}: give a number of evaluations, 1 or more")
        if mode not in get_args(Mode):
            raise ValueError(f'mode={mode!r}: give "min" if smaller values are better, or "max"')
        if type(min_delta) not in (int, float) or not 0 <= min_delta < math.inf:
            raise ValueError(f"min_delta={min_delta!r}: give a number from 0")
        self._patience = patience
        self._sign = 1 if mode == "min" else -1
        self._min_delta = min_delta
        self._no_better = 0
        self.best: float | None = None

    def update(self, value: float | Tensor) -> bool:
        """Add the value of one evaluation, the same on all ranks.

        Returns:
            Whether to stop: none of the last ``patience`` values improved on the best value. NaN never improves on it.
        """
        number = float(value)
        if not math.isnan(number) and (self.best is None or self._sign * (self.best - number) > self._min_delta):
            self.best, self._no_better = number, 0
        else:
            self._no_better += 1
        return self._no_better >= self._patience

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and how many values since did not improve on it."""
        return {"best": self.best, "no_better": self._no_better}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and the count; patience, mode and min_delta stay the script's."""
        self.best, self._no_better = state["best"], state["no_better"]
