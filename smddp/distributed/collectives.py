"""The collectives over tensors that training needs beside DDP's own: sums and a gather.

Under tensor parallelism several ranks compute the same results; `sum_results` and `gather_results` count them once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from smddp.distributed.membership import Membership


def sum_over_ranks(value: Tensor, membership: Membership) -> Tensor:
    """Return the sum of every rank's tensor, on the same device; all ranks call it, with tensors of one shape."""
    if membership.store is None:
        return value.clone()
    on_cpu_only = value.is_cpu and membership.control_device.type != "cpu"
    total = value.to(membership.control_device) if on_cpu_only else value.clone()
    dist.all_reduce(total)
    return total.to(value.device)


def sum_results(value: Tensor | float | list[float], membership: Membership) -> Tensor:
    """Return the sum of every rank's results; all ranks call it, with tensors of one shape or equally many numbers.

    The sum of a tensor is on its device; bools and integers of any size are summed in int64, as by torch's sum(). That
    of numbers is on the CPU: int64 if all ranks pass whole numbers, else float64.
    """
    if isinstance(value, Tensor):
        value = value.resolve_conj().resolve_neg()
        value = value if value.is_floating_point() or value.is_complex() else value.long()
        return sum_over_ranks(torch.zeros_like(value) if membership.repeats else value, membership)
    numbers = value if isinstance(value, list) else [value]
    total = _sum_numbers([0 for _ in numbers] if membership.repeats else numbers, membership)
    return total if isinstance(value, list) else total[0]


def _sum_numbers(numbers: list[float], membership: Membership) -> Tensor:
    """Return the sum of every rank's numbers, on the CPU: int64 if all ranks pass whole numbers, else float64.

    A rank does not know the others' types: one without samples may pass 0, and another 3.5. So all send float64, and
    whole numbers as two halves of 32 bits, whose sums are exact.
    """
    is_whole = all(isinstance(number, int) for number in numbers)
    own = torch.tensor(numbers, dtype=torch.int64 if is_whole else torch.float64)
    high, low = (own >> 32, own & 0xFFFFFFFF) if is_whole else (torch.zeros_like(own), own)
    sent = torch.stack([high.double(), low.double(), torch.full_like(own, not is_whole, dtype=torch.float64)])
    high, low, fractions = sum_over_ranks(sent, membership)
    total: Tensor = high * 2**32 + low if fractions.any() else (high.long() << 32) + low.long()
    return total


def gather_results(value: Tensor, membership: Membership) -> Tensor:
    """Return the results of all ranks, joined along the first dimension in rank order; all ranks must call it.

    The lengths along the first dimension may differ and be 0; a scalar counts as one element. The result is a new
    tensor on the same device, without gradients. Raise ValueError on every rank if other dimensions, the types or the
    kinds of device differ, and PeerFailedError on the other ranks if one passes no tensor.
    """
    kinds = membership.ranks.gather(lambda: _kind(value, is_empty=membership.repeats))
    if any(kind[1:] != kinds[0][1:] for kind in kinds):
        found = ", ".join(
            f"rank {rank} {list(kind.shape)} {kind.dtype} {kind.device}" for rank, kind in enumerate(kinds)
        )
        raise ValueError(
            f"the ranks' tensors can't be put together ({found}): only their lengths along the first dimension may "
            "differ; pad, convert or move them"
        )
    whole = value.detach().resolve_conj().resolve_neg().reshape(value.shape or (1,))
    own = whole[: kinds[membership.cluster.rank].length]
    if membership.store is None:
        return own.clone()
    # As bytes, which every backend can carry for any type, padded to the same length on all ranks.
    device = membership.control_device if own.is_cpu else own.device
    sizes = [math.prod(kind.shape) * own.element_size() for kind in kinds]
    sent = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    sent[: sizes[membership.cluster.rank]] = own.to(device).contiguous().flatten().view(torch.uint8)
    received = [torch.empty_like(sent) for _ in kinds]
    dist.all_gather(received, sent)
    parts = [
        data[:size].clone().view(own.dtype).reshape(kind.shape)
        for data, size, kind in zip(received, sizes, kinds, strict=True)
    ]
    return torch.cat(parts).to(own.device)


class _Kind(NamedTuple):
    length: int
    trailing: tuple[int, ...]
    dtype: str
    device: str

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length, *self.trailing)


def _kind(value: Tensor, *, is_empty: bool) -> _Kind:
    if not isinstance(value, Tensor):
        raise TypeError(f"{type(value).__name__} is no tensor: gather takes a tensor, torch.tensor(...) makes one")
    length, *trailing = value.shape or (1,)
    return _Kind(0 if is_empty else length, tuple(trailing), str(value.dtype), value.device.type)
