"""The ranks of a process group, and the few verbs by which they agree and share.

Every verb is called on all ranks. If an action fails on one rank, no other is left waiting: that rank raises its own
error, and the others raise PeerFailedError, so that the rank with the cause reports the job's failure. Without
torch.distributed there is one rank. Values travel on the CPU if the process group can carry CPU tensors, else on the
GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from smddp.distributed.device import CPU
from smddp.errors import SmddpError

T = TypeVar("T")

_PIECE = 64 * 2**20
"""Bytes broadcast at a time: the extra memory on a GPU, and on the CPU for small tensors."""


class PeerFailedError(SmddpError):
    """Another rank failed in a joint action; its own error has the cause."""

    def __init__(self, message: str, *, rank: int | None = None, told: str = "") -> None:
        """Keep the failed rank, if known, and the text of its error."""
        super().__init__(message)
        self.rank = rank
        self.told = told


@dataclass(kw_only=True, slots=True, frozen=True)
class Ranks:
    """This process among the ranks of a group."""

    rank: int
    world_size: int
    device: torch.device = CPU
    """The device of the tensors that ranks exchange."""

    @classmethod
    def current(cls) -> Ranks:
        """Return the ranks of the current default process group."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(rank=0, world_size=1)
        carries_cpu = "cpu:" in dist.get_backend_config()  # such as "cpu:gloo,cuda:nccl"
        device = CPU if carries_cpu else torch.device("cuda", torch.cuda.current_device())
        return cls(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def agree(self, action: Callable[[], T]) -> T:
        """Run the action on every rank, and return this rank's own result once all have succeeded.

        If it fails here, raise its error; if it fails only on another rank, raise PeerFailedError.
        """
        result, text, error = _attempt(action)
        self._raise_first(self._from_each(text), error)
        return cast(T, result)

    def gather(self, action: Callable[[], T]) -> list[T]:
        """Run the action on every rank, and return all (small) results in rank order; raise as ``agree``."""
        result, text, error = _attempt(action)
        results, texts = zip(*self._from_each((result, text)), strict=True)
        self._raise_first(texts, error)
        return list(results)

    def on_main(self, action: Callable[[], T]) -> T:
        """Run the action on rank 0, and return its (small) result on every rank.

        If it fails, rank 0 raises its error, and the others raise PeerFailedError.
        """
        result, text, error = _attempt(action) if self.is_main else (None, None, None)
        result, text = self.from_rank(0, (result, text))
        self._raise_first([text], error)
        return cast(T, result)

    def from_rank(self, source: int, value: T) -> T:
        """Return on all ranks the (small) value of rank ``source``; the other ranks' values are ignored."""
        shared: list[Any] = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(shared, src=source, device=self.device)
        return shared[0]  # type: ignore[no-any-return]

    def broadcast(self, tensors: Iterable[torch.Tensor], *, source: int = 0) -> None:
        """Fill tensors with the content of rank ``source``.

        They are contiguous, on the CPU, and have the same order, shapes and dtypes on every rank.
        """
        if self.world_size == 1:
            return
        small: list[torch.Tensor] = []
        size = 0
        for tensor in tensors:
            content = tensor.detach().reshape(-1).view(torch.uint8)
            if size + len(content) > _PIECE:
                self._broadcast_together(small, source)
                small, size = [], 0
            if len(content) <= _PIECE:
                small.append(content)
                size += len(content)
            else:
                for start in range(0, len(content), _PIECE):
                    self._broadcast_together([content[start : start + _PIECE]], source)
        self._broadcast_together(small, source)

    def _broadcast_together(self, contents: list[torch.Tensor], source: int) -> None:
        """Broadcast several flat byte tensors as one."""
        sizes = list(map(len, contents))
        if sum(sizes) == 0:
            return
        if self.rank == source:
            piece = torch.cat(contents).to(self.device)
        else:
            piece = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        dist.broadcast(piece, src=source)
        if self.rank != source:
            for content, received in zip(contents, torch.split(piece.cpu(), sizes), strict=True):
                content.copy_(received)

    def _from_each(self, value: T) -> list[T]:
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def _raise_first(self, texts: Iterable[str | None], own: Exception | None) -> None:
        """Raise this rank's error; without one, raise PeerFailedError for the first rank that failed."""
        if own is not None:
            raise own
        for rank, text in enumerate(texts):
            if text is not None:
                raise PeerFailedError(f"rank {rank} failed: {text}", rank=rank, told=text)


def _attempt(action: Callable[[], T]) -> tuple[T | None, str | None, Exception | None]:
    """Return the action's result, or its error as text and as an exception."""
    try:
        return action(), None, None
    except Exception as error:  # not swallowed: raised once the other ranks know of it
        return None, error_text(error), error


def error_text(error: Exception) -> str:
    """Describe an error for the other ranks; smddp's own errors need no class name."""
    return str(error) if isinstance(error, SmddpError) else f"{type(error).__name__}: {error}"
