"""The communications of torch.distributed, each with inputs whose result is known."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smddp.collectives.measure import Call, Operation, Setting


def _reduction(name: str | None) -> Any:
    return getattr(dist.ReduceOp, name or "SUM")


def _reduced(setting: Setting, count: int, reduction: str | None) -> Tensor:
    """Return the right result of a reduction over all ranks' inputs."""
    combine: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "SUM": torch.add,
        "AVG": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
    total = setting.values(0, count, reduction)
    for rank in range(1, setting.world_size):
        total = combine[reduction or "SUM"](total, setting.values(rank, count, reduction))
    return total / setting.world_size if reduction == "AVG" else total


def _is_close(own: Tensor, right: Tensor) -> bool:
    return torch.allclose(own, right) if own.is_floating_point() else torch.equal(own, right)


class _InPlace:
    """A buffer that an operation overwrites with its result.

    Timed calls continue with the previous result; the checked call starts from known numbers.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self.buffer = values.clone()

    def refill(self) -> Tensor:
        self.buffer.copy_(self._values)
        return self.buffer


def _all_reduce(setting: Setting, size: int, reduction: str | None) -> Call:
    count = max(size // 4, 1)
    held = _InPlace(setting.values(setting.rank, count, reduction))
    op = _reduction(reduction)

    def is_right() -> bool:
        dist.all_reduce(held.refill(), op=op, group=setting.group)
        return _is_close(held.buffer, _reduced(setting, count, reduction))

    return Call(lambda: dist.all_reduce(held.buffer, op=op, group=setting.group), is_right, count * 4)


def _reduce(setting: Setting, size: int, reduction: str | None) -> Call:
    count = max(size // 4, 1)
    held = _InPlace(setting.values(setting.rank, count, reduction))
    op = _reduction(reduction)

    def is_right() -> bool:
        dist.reduce(held.refill(), 0, op=op, group=setting.group)
        return setting.rank != 0 or _is_close(held.buffer, _reduced(setting, count, reduction))

    return Call(lambda: dist.reduce(held.buffer, 0, op=op, group=setting.group), is_right, count * 4)


def _reduce_scatter(setting: Setting, size: int, reduction: str | None) -> Call:
    count = setting.parts(size)
    own = list(setting.values(setting.rank, count * setting.world_size, reduction).chunk(setting.world_size))
    part = torch.empty_like(own[0])

    def is_right() -> bool:
        right = _reduced(setting, count * setting.world_size, reduction).chunk(setting.world_size)[setting.rank]
        return _is_close(part, right)

    op = _reduction(reduction)
    return Call(lambda: dist.reduce_scatter(part, own, op=op, group=setting.group), is_right, count * 4 * len(own))


def _broadcast(setting: Setting, size: int, _: str | None) -> Call:
    count = max(size // 4, 1)
    buffer = setting.values(setting.rank, count, None)
    right = setting.values(0, count, None)
    return Call(lambda: dist.broadcast(buffer, 0, group=setting.group), lambda: torch.equal(buffer, right), count * 4)


def _scatter(setting: Setting, size: int, _: str | None) -> Call:
    count = setting.parts(size)
    whole = list(setting.values(0, count * setting.world_size, None).chunk(setting.world_size))
    part = torch.empty_like(whole[0])
    given = whole if setting.rank == 0 else None
    return Call(
        lambda: dist.scatter(part, given, 0, group=setting.group),
        lambda: torch.equal(part, whole[setting.rank]),
        count * 4 * len(whole),
    )


def _gather(setting: Setting, size: int, _: str | None) -> Call:
    count = setting.parts(size)
    own = setting.values(setting.rank, count, None)
    parts = [torch.empty_like(own) for _ in range(setting.world_size)] if setting.rank == 0 else None
    return Call(
        lambda: dist.gather(own, parts, 0, group=setting.group),
        lambda: parts is None or _is_from_all(setting, parts),
        count * 4 * setting.world_size,
    )


def _all_gather(setting: Setting, size: int, _: str | None) -> Call:
    own = setting.values(setting.rank, setting.parts(size), None)
    parts = [torch.empty_like(own) for _ in range(setting.world_size)]
    return Call(
        lambda: dist.all_gather(parts, own, group=setting.group),
        lambda: _is_from_all(setting, parts),
        own.nbytes * setting.world_size,
    )


def _is_from_all(setting: Setting, parts: Sequence[Tensor]) -> bool:
    return all(torch.equal(part, setting.values(rank, len(part), None)) for rank, part in enumerate(parts))


def _all_to_all(setting: Setting, size: int, _: str | None) -> Call:
    count, ranks = setting.parts(size), setting.world_size
    own = list(setting.values(setting.rank, count * ranks, None).chunk(ranks))
    parts = [torch.empty_like(part) for part in own]

    def is_right() -> bool:
        sent = (setting.values(rank, count * ranks, None).chunk(ranks)[setting.rank] for rank in range(ranks))
        return all(torch.equal(part, right) for part, right in zip(parts, sent, strict=True))

    return Call(lambda: dist.all_to_all(parts, own, group=setting.group), is_right, count * 4 * ranks)


def _barrier(setting: Setting, _size: int, _reduction: str | None) -> Call:
    return Call(lambda: dist.barrier(group=setting.group), None, 0)


def _send_recv(setting: Setting, size: int, _: str | None) -> Call:
    """Send from each even rank to the next rank, which receives."""
    count = max(size // 4, 1)
    rank, peer = setting.rank, setting.rank ^ 1
    own, received = setting.values(rank, count, None), torch.zeros(count, device=setting.device)

    def run() -> None:
        if peer >= setting.world_size:
            return
        if rank < peer:
            dist.send(own, peer, group=setting.group)
        else:
            dist.recv(received, peer, group=setting.group)

    def is_right() -> bool:
        takes_part = rank > peer
        return not takes_part or torch.equal(received, setting.values(peer, count, None))

    return Call(run, is_right, count * 4)


def _isend_irecv(setting: Setting, size: int, _: str | None) -> Call:
    """Send from each rank to the next, and receive from the previous one, at the same time."""
    count = max(size // 4, 1)
    following, before = (setting.rank + 1) % setting.world_size, (setting.rank - 1) % setting.world_size
    own, received = setting.values(setting.rank, count, None), torch.zeros(count, device=setting.device)

    def run() -> None:
        operations = [
            dist.P2POp(dist.isend, own, following, group=setting.group),
            dist.P2POp(dist.irecv, received, before, group=setting.group),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return Call(run, lambda: torch.equal(received, setting.values(before, count, None)), count * 4)


def _broadcast_object_list(setting: Setting, size: int, _: str | None) -> Call:
    held: list[Any] = []

    def run() -> None:
        held[:] = [_payload(setting.rank, size)]
        dist.broadcast_object_list(held, 0, group=setting.group, device=setting.device)

    return Call(run, lambda: held == [_payload(0, size)], _pickled(size))


def _scatter_object_list(setting: Setting, size: int, _: str | None) -> Call:
    held: list[Any] = [None]
    whole = [_payload(rank, size) for rank in range(setting.world_size)]
    given = whole if setting.rank == 0 else None
    return Call(
        lambda: dist.scatter_object_list(held, given, 0, group=setting.group),
        lambda: held == [whole[setting.rank]],
        _pickled(size) * setting.world_size,
    )


def _gather_object(setting: Setting, size: int, _: str | None) -> Call:
    held: list[Any] | None = [None] * setting.world_size if setting.rank == 0 else None
    own = _payload(setting.rank, size)
    return Call(
        lambda: dist.gather_object(own, held, 0, group=setting.group),
        lambda: held is None or held == [_payload(rank, size) for rank in range(setting.world_size)],
        _pickled(size) * setting.world_size,
    )


def _all_gather_object(setting: Setting, size: int, _: str | None) -> Call:
    held: list[Any] = [None] * setting.world_size
    own = _payload(setting.rank, size)
    return Call(
        lambda: dist.all_gather_object(held, own, group=setting.group),
        lambda: held == [_payload(rank, size) for rank in range(setting.world_size)],
        _pickled(size) * setting.world_size,
    )


def _payload(rank: int, size: int) -> dict[str, Any]:
    return {"rank": rank, "bytes": bytes([rank % 256]) * size}


def _pickled(size: int) -> int:
    return len(pickle.dumps(_payload(0, size)))


def _all_but_own(ranks: int) -> float:
    return (ranks - 1) / ranks


OPERATIONS = (
    Operation(name="send/recv", prepare=_send_recv, least_ranks=2),
    Operation(name="isend/irecv", prepare=_isend_irecv, least_ranks=2),
    Operation(name="broadcast", prepare=_broadcast),
    Operation(name="broadcast_object_list", prepare=_broadcast_object_list),
    Operation(name="scatter", prepare=_scatter, bus_factor=_all_but_own),
    Operation(name="scatter_object_list", prepare=_scatter_object_list, bus_factor=_all_but_own),
    Operation(name="gather", prepare=_gather, bus_factor=_all_but_own),
    Operation(name="gather_object", prepare=_gather_object, bus_factor=_all_but_own),
    Operation(name="reduce", prepare=_reduce, reduces=True),
    Operation(name="reduce_scatter", prepare=_reduce_scatter, bus_factor=_all_but_own, reduces=True),
    Operation(name="all_gather", prepare=_all_gather, bus_factor=_all_but_own),
    Operation(name="all_gather_object", prepare=_all_gather_object, bus_factor=_all_but_own),
    Operation(name="all_reduce", prepare=_all_reduce, bus_factor=lambda ranks: 2 * (ranks - 1) / ranks, reduces=True),
    Operation(name="all_to_all", prepare=_all_to_all, bus_factor=_all_but_own),
    Operation(name="barrier", prepare=_barrier),
)
"""All operations, in the order of PyTorch's documentation."""
