"""Check and time one communication of torch.distributed on all ranks, and report what a backend lacks.

A communication has inputs with a known result, a call, and a size. Sizes and bandwidths are defined as in NVIDIA's
nccl-tests (doc/PERFORMANCE.md): the size is the largest buffer on a rank, the algorithm bandwidth is size over
time, and the bus bandwidth is the algorithm bandwidth times a factor, which makes it comparable with the hardware's
bandwidth for any number of ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smddp.accelerator import synchronize
from smddp.errors import DistributedError

_WARM_UP_CALLS = 5
_LONGEST_REASON = 160

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
    """Return a new process group of all ranks; ``options`` go to ``torch.distributed.new_group``."""
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


@dataclass(kw_only=True, slots=True, frozen=True)
class Measurement:
    """The result of one operation at one size."""

    operation: str
    reduction: str | None
    """The reduce operation, or None."""
    backend: str
    device: str
    ranks: int
    size: int
    """Bytes of the largest buffer on a rank."""
    seconds: float | None = None
    """Mean seconds per call, on the slowest rank; None if the backend lacks the operation."""
    bus_factor: float = 1.0
    is_right: bool | None = None
    """Whether every rank had the right result; None without a result, as for a barrier or if nothing ran."""
    lacks: str | None = None
    """Why the backend lacks the operation, or None."""

    @property
    def algorithm_bandwidth(self) -> float | None:
        """Size over time, in bytes a second."""
        return self.size / self.seconds if self.seconds and self.size else None

    @property
    def bus_bandwidth(self) -> float | None:
        """Bytes a second that each link must have carried, by nccl-tests' factor."""
        bandwidth = self.algorithm_bandwidth
        return None if bandwidth is None else bandwidth * self.bus_factor


def measure(
    operations: Sequence[Operation], settings: Sequence[Setting], sizes: Sequence[int], *, seconds: float
) -> Iterator[Measurement]:
    """Measure each operation in each setting, with each reduce operation. All ranks must iterate over the result.

    ``sizes`` are approximate bytes of the largest buffer on a rank; each call is repeated for about ``seconds``.
    """
    for setting in settings:
        for operation in operations:
            for reduction in REDUCTIONS if operation.reduces else (None,):
                yield from _over_sizes(operation, setting, reduction, sizes, seconds)


def _over_sizes(
    operation: Operation, setting: Setting, reduction: str | None, sizes: Sequence[int], seconds: float
) -> Iterator[Measurement]:
    for size in sizes:
        found = _measure_one(operation, setting, reduction, size, seconds)
        yield found
        if found.lacks is not None or found.size == 0:
            return  # another size would give the same


def _measure_one(
    operation: Operation, setting: Setting, reduction: str | None, size: int, seconds: float
) -> Measurement:
    found = Measurement(
        operation=operation.name,
        reduction=reduction,
        backend=setting.backend,
        device=setting.device.type,
        ranks=setting.world_size,
        size=size,
        bus_factor=operation.bus_factor(setting.world_size),
    )
    if setting.world_size < operation.least_ranks:
        return replace(found, lacks=f"it takes {operation.least_ranks} ranks, and here is {setting.world_size}")
    call = operation.prepare(setting, size, reduction)
    lacks = _try(call)
    refusals = int(_over_ranks(setting, float(lacks is not None), dist.ReduceOp.SUM))
    if refusals == setting.world_size:
        return replace(found, lacks=lacks)
    if refusals:
        own = f"here, on rank {setting.rank}: {lacks}" if lacks is not None else f"not on rank {setting.rank}"
        raise DistributedError(f"{operation.name} failed on {refusals} of {setting.world_size} ranks, {own}.")
    is_right = None
    if call.is_right is not None:
        is_right = _over_ranks(setting, float(call.is_right()), dist.ReduceOp.MIN) == 1.0
    return replace(found, size=call.size, seconds=_time(call, setting, seconds), is_right=is_right)


def _try(call: Call) -> str | None:
    """Run the operation once; return why the backend refuses it, or None. It refuses on all ranks, before it sends."""
    try:
        call.run()
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        return str(error).strip().splitlines()[0][:_LONGEST_REASON] or type(error).__name__
    return None


def _time(call: Call, setting: Setting, seconds: float) -> float:
    """Return the mean seconds of a call, on the slowest rank."""
    taken = _repeat(call, setting, _WARM_UP_CALLS)
    # The ranks must agree on the number of calls: the slowest one's warm-up decides.
    slowest = _over_ranks(setting, taken / _WARM_UP_CALLS, dist.ReduceOp.MAX)
    calls = max(int(seconds / max(slowest, 1e-7)), 1)
    return _over_ranks(setting, _repeat(call, setting, calls) / calls, dist.ReduceOp.MAX)


def _repeat(call: Call, setting: Setting, calls: int) -> float:
    dist.barrier(group=setting.group)
    synchronize(setting.device)
    started = time.perf_counter()
    for _ in range(calls):
        call.run()
    synchronize(setting.device)
    return time.perf_counter() - started


def _over_ranks(setting: Setting, value: float, op: dist.ReduceOp.RedOpType) -> float:
    total: Tensor = torch.tensor(value, dtype=torch.float64, device=setting.device)
    dist.all_reduce(total, op=op, group=setting.group)
    return total.item()
