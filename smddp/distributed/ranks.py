"""The ranks of a process group, and the few verbs by which they agree and share.

Every verb is called on all ranks. When an action fails on a rank, no other is left waiting: that rank raises its own
error, and the others raise PeerFailedError, so that the job's failure is told by the rank that has it. Without
torch.distributed there is one rank. What travels lies on the CPU where the process group can carry that, else on the
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
    """Another rank failed at what it did for all; the cause is in that rank's own error."""

    def __init__(self, message: str, *, rank: int | None = None, told: str = "") -> None:
        """Say it.

        Args:
            message: What happened.
            rank: Where, if it is known.
            told: The error of that rank, as text.
        """
        super().__init__(message)
        self.rank = rank
        self.told = told


@dataclass(kw_only=True, slots=True, frozen=True)
class Ranks:
    """This process among the processes of a group."""

    rank: int
    world_size: int
    device: torch.device = CPU
    """Where what travels must lie."""

    @classmethod
    def current(cls) -> Ranks:
        """Return the ranks of the default process group as it is now."""
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
        """Run the action on every rank, and return this rank's own result once it succeeded on all.

        Raises:
            PeerFailedError: It failed on another rank, and not on this one.
        """
        result, text, error = _attempt(action)
        self._raise_first(self._from_each(text), error)
        return cast(T, result)

    def gather(self, action: Callable[[], T]) -> list[T]:
        """Run the action on every rank, and return the (small) results of all in the order of the ranks.

        Raises:
            PeerFailedError: It failed on another rank, and not on this one.
        """
        result, text, error = _attempt(action)
        results, texts = zip(*self._from_each((result, text)), strict=True)
        self._raise_first(texts, error)
        return list(results)

    def on_main(self, action: Callable[[], T]) -> T:
        """Run the action on rank 0, and return its (small) result on every rank.

        Raises:
            PeerFailedError: It failed, on every other rank.
        """
        result, text, error = _attempt(action) if self.is_main else (None, None, None)
        result, text = self.from_rank(0, (result, text))
        self._raise_first([text], error)
        return cast(T, result)

    def from_rank(self, source: int, value: T) -> T:
        """Return on all ranks the (small) value that one rank has.

        Args:
            source: That rank.
            value: What it has; the other ranks' counts for nothing.
        """
        shared: list[Any] = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(shared, src=source, device=self.device)
        return shared[0]  # type: ignore[no-any-return]

    def broadcast(self, tensors: Iterable[torch.Tensor], *, source: int = 0) -> None:
        """Fill tensors with what one rank has in them.

        Args:
            tensors: Contiguous, on the CPU; in the same order and of the same shapes and dtypes on every rank.
            source: The rank.
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
        """Fill flat tensors of bytes by one broadcast."""
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
        """Raise what failed here; if nothing did, say what failed first elsewhere."""
        if own is not None:
            raise own
        for rank, text in enumerate(texts):
            if text is not None:
                raise PeerFailedError(f"rank {rank} failed: {text}", rank=rank, told=text)


def _attempt(action: Callable[[], T]) -> tuple[T | None, str | None, Exception | None]:
    """Return the result, or the error as text and as it is."""
    try:
        return action(), None, None
    except Exception as error:  # not swallowed: raised once the other ranks know
        return None, error_text(error), error


def error_text(error: Exception) -> str:
    """Describe an error to the other ranks; our own say by themselves what is wrong."""
    return str(error) if isinstance(error, SmddpError) else f"{type(error).__name__}: {error}"
