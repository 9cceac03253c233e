"""One communication of torch.distributed: inputs with a known result, a call, and a size.

Sizes and bandwidths are defined as in NVIDIA's nccl-tests (doc/PERFORMANCE.md): the size is that of the largest buffer
on a rank, the algorithm bandwidth is size over time, and the bus bandwidth is the algorithm bandwidth times a factor,
which makes it comparable with the hardware's bandwidth for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_EVERY_REDUCTION = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
_OF_BITS = ("BAND", "BOR", "BXOR")
REDUCTIONS = (*_EVERY_REDUCTION, *_OF_BITS)
"""The reduce operations, by PyTorch's names. PREMUL_SUM, NCCL's own, takes a factor and is left out."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Setting:
    """The ranks, backend, device and group that an operation runs on."""

    rank: int
    world_size: int
    backend: str
    device: torch.device
    group: dist.ProcessGroup

    def values(self, rank: int, count: int, reduction: str | None) -> Tensor:
        """Return a rank's input: small whole numbers, so that sums and products are exact."""
        dtype = torch.int32 if reduction in _OF_BITS else torch.float32
        index = torch.arange(count, device=self.device)
        if reduction == "PRODUCT":
            return (1 + (index + rank) % 2).to(dtype)
        return ((index * 5 + rank * 3) % 13).to(dtype)

    def parts(self, size: int) -> int:
        """Return how many numbers each rank's part has, if all parts together have ``size`` bytes."""
        return max(size // 4 // self.world_size, 1)


def group_of_all(**options: Any) -> dist.ProcessGroup:
    """Return a new process group of all ranks; ``options`` are those of ``torch.distributed.new_group``."""
    group = dist.new_group(**options)
    assert isinstance(group, dist.ProcessGroup), "every rank belongs to it"
    return group


@dataclass(slots=True, frozen=True)
class Call:
    """One operation, ready to run."""

    run: Callable[[], object]
    """Run the operation, and return once it is done; on a GPU once it is queued."""
    is_right: Callable[[], bool] | None
    """Return whether this rank's result of the last run is right; None for an operation without a result."""
    size: int
    """Bytes of the largest buffer on a rank."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Operation:
    """A communication of torch.distributed."""

    name: str
    """The name of the function."""
    prepare: Callable[[Setting, int, str | None], Call]
    """Make the buffers, for about so many bytes and one of `REDUCTIONS`, or None if the operation does not reduce."""
    bus_factor: Callable[[int], float] = lambda _: 1.0
    """Return bus bandwidth over algorithm bandwidth, by the number of ranks."""
    reduces: bool = False
    least_ranks: int = 1
