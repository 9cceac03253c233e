"""The protocol of an order: the samples of each micro-batch of this rank, and the position in the epoch.

The order lives in the main process of each rank; a loader's workers only fetch and decode. An order is a batch sampler
for ``torch.utils.data.DataLoader(dataset, batch_sampler=order)``: any number of workers gives the same batches, and a
batch fetched ahead does not count. Only `DataOrder.advance` moves the position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class DataOrder(Protocol):
    """The training data of one rank, with a position that a checkpoint keeps."""

    global_batch: int
    """Samples an optimizer step, over all ranks and micro-batches."""

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        ...

    @property
    def consumed(self) -> int:
        """Samples of this epoch consumed by optimizer steps, over all ranks."""
        ...

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in a whole epoch, the same on all ranks; None if unknown before the epoch's end."""
        ...

    def __len__(self) -> int:
        """Return the number of this rank's micro-batches left in the epoch; raise TypeError if it is not known yet."""
        ...

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield this rank's micro-batches, from the first step not taken; ``accumulate`` lists in a row are a step."""
        ...

    def start_epoch(self, epoch: int) -> None:
        """Begin this epoch, or continue it if it is the current one; raise ValueError if it is negative."""
        ...

    def advance(self) -> None:
        """Count one optimizer step as taken; raise ValueError if all steps of the epoch were taken already."""
        ...

    def loss_weight(self, micro_batch: int) -> float:
        """Return the factor for the mean loss of micro-batch 0 to ``accumulate - 1`` of the current step, on this rank.

        With this factor, the division by ``accumulate`` and DDP's mean over the ranks, the step's gradient is the
        gradient of the mean over its samples. The factor is 1.0 except in a short last batch; there it is 0.0 for a
        micro-batch that only repeats a sample so that this rank takes part.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, the same on every rank: a small JSON object."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position from `state_dict`, saved at any number of ranks; raise ValueError if it does not fit."""
        ...
