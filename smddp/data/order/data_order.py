"""What an order is: which samples each micro-batch of this rank holds, and how far the epoch has come.

One idea carries the room: the order lives in the main process of each rank, and a loader's workers only fetch and
decode. An order is a batch sampler for ``torch.utils.data.DataLoader(dataset, batch_sampler=order)``, so that any
number of workers gives the same batches, and what was fetched ahead is not counted: only `DataOrder.advance` counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class DataOrder(Protocol):
    """The training data of one rank, whose place a checkpoint keeps."""

    global_batch: int
    """Samples an optimizer step, over all ranks and micro-batches."""

    @property
    def epoch(self) -> int:
        """The epoch whose order is given, from 0."""
        ...

    @property
    def consumed(self) -> int:
        """Samples of this epoch, over all ranks, that optimizer steps were taken on."""
        ...

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in a whole epoch, the same on all ranks; None if that is not known before its end."""
        ...

    def __len__(self) -> int:
        """Return this rank's micro-batches that are left in the epoch.

        Raises:
            TypeError: That is not known before its end.
        """
        ...

    def __iter__(self) -> Iterator[list[Any]]:
        """Give this rank's micro-batches from the first step not taken; ``accumulate`` lists in a row are a step."""
        ...

    def start_epoch(self, epoch: int) -> None:
        """Begin this epoch, or go on with it where it is already under way.

        Raises:
            ValueError: The epoch is negative.
        """
        ...

    def advance(self) -> None:
        """Count one optimizer step as taken.

        Raises:
            ValueError: All steps of the epoch were taken already.
        """
        ...

    def loss_weight(self, micro_batch: int) -> float:
        """Return what the mean loss of a micro-batch of the step under way is multiplied by, on this rank.

        With it, the division by ``accumulate`` and DDP's mean over the ranks, the gradient of the step is that of the
        mean over its samples. It is 1.0 but in a short last batch, and 0.0 for a micro-batch that only repeats a
        sample so that this rank takes part.

        Args:
            micro_batch: From 0 to ``accumulate - 1``.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Give the position in the data, the same on every rank: a small JSON object."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state_dict` gave, at any number of ranks.

        Raises:
            ValueError: The position belongs to another order, or to none.
        """
        ...
