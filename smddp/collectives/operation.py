"""What a communication of torch.distributed is here: inputs whose result is known, a call, and a size.

Sizes and bandwidths are those of NVIDIA's nccl-tests, whose doc/PERFORMANCE.md derives them: the size is that of the
largest buffer on a rank, the algorithm's bandwidth is size over time, and the bus bandwidth is that times a factor, so
that it can be compared with what the hardware can do, at any number of ranks.
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
    """Where an operation runs."""

    rank: int
    world_size: int
    backend: str
    device: torch.device
    group: dist.ProcessGroup

    def values(self, rank: int, count: int, reduction: str | None) -> Tensor:
        """Return what a rank puts in: small whole numbers, of which sums and products are exact."""
        dtype = torch.int32 if reduction in _OF_BITS else torch.float32
        index = torch.arange(count, device=self.device)
        if reduction == "PRODUCT":
            return (1 + (index + rank) % 2).to(dtype)
        return ((index * 5 + rank * 3) % 13).to(dtype)

    def parts(self, size: int) -> int:
        """Return how many numbers each of as many parts as there are ranks has, all of them ``size`` bytes."""
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
    """Runs it, and returns once it is done; on a GPU once it is queued."""
    is_right: Callable[[], bool] | None
    """Whether this rank has the right result of the last run; None for what has no result."""
    size: int
    """Bytes of the largest buffer on a rank."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Operation:
    """A communication of torch.distributed."""

    name: str
    """That of the function."""
    prepare: Callable[[Setting, int, str | None], Call]
    """Makes the buffers for about so many bytes and, where the operation reduces, for one of `REDUCTIONS`."""
    bus_factor: Callable[[int], float] = lambda _: 1.0
    """By the number of ranks: bus bandwidth over the algorithm's."""
    reduces: bool = False
    least_ranks: int = 1
