"""The ranks that share a checkpoint: what each learns from the others, with none left waiting.

An error on one rank becomes the same CheckpointError on every rank; on the others its cause is a PeerFailedError, so
that the job's failure is told by the rank that has it. Without torch.distributed there is one rank. Everything travels
as tensors that the process group can carry: on the CPU where it can, else on the GPU.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from smddp.distributed import PeerFailedError
from smddp.distributed.device import CPU
from smddp.errors import CheckpointError

_Result = TypeVar("_Result")

_PIECE = 64 * 2**20
"""Bytes broadcast at a time: what it takes of a GPU's memory, and of the CPU's for small tensors."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Ranks:
    """This process among those of the default process group. Every method is called on all of them."""

    rank: int
    world_size: int
    device: torch.device = CPU
    """Where what travels must lie."""

    @classmethod
    def current(cls) -> Ranks:
        """Look at the process group as it is now."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(rank=0, world_size=1)
        carries_cpu = "cpu:" in dist.get_backend_config()  # such as "cpu:gloo,cuda:nccl"
        device = CPU if carries_cpu else torch.device("cuda", torch.cuda.current_device())
        return cls(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def on_main(self, action: Callable[[], _Result]) -> _Result:
        """Do something on rank 0 and give its (small) result to every rank.

        Raises:
            CheckpointError: it failed on rank 0; on every rank.
        """
        outcome, cause = _attempt(action) if self.is_main else ((None, None), None)
        result, failure = self._from_main(outcome)
        if failure is not None:
            raise CheckpointError(failure) from self._cause(cause, of=0)
        return result  # type: ignore[no-any-return]

    def on_each(self, action: Callable[[], _Result]) -> list[_Result]:
        """Do something on every rank and give all (small) results to every rank, in the order of the ranks.

        Raises:
            CheckpointError: it failed on some rank; on every rank.
        """
        outcome, cause = _attempt(action)
        outcomes = self._from_each(outcome)
        for rank, (_, failure) in enumerate(outcomes):
            if failure is not None:
                text = f"rank {rank}: {failure}" if self.world_size > 1 else failure
                raise CheckpointError(text) from self._cause(cause, of=rank)
        return [result for result, _ in outcomes]

    def broadcast(self, tensors: Iterable[torch.Tensor], *, source: int = 0) -> None:
        """Fill tensors with what one rank has in them.

        Args:
            tensors: contiguous, on the CPU; in the same order and of the same shapes and dtypes on every rank.
            source: the rank.
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
        size = sum(map(len, contents))
        if size == 0:
            return
        if self.rank == source:
            piece = torch.cat(contents).to(self.device)
        else:
            piece = torch.empty(size, dtype=torch.uint8, device=self.device)
        dist.broadcast(piece, src=source)
        if self.rank != source:
            for content, received in zip(
                contents, torch.split(piece.cpu(), [len(each) for each in contents]), strict=True
            ):
                content.copy_(received)

    def _from_main(self, value: Any) -> Any:
        if self.world_size == 1:
            return value
        content = _pickled(value) if self.is_main else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([len(content)], device=self.device)
        dist.broadcast(size, src=0)
        if not self.is_main:
            content = torch.empty(int(size), dtype=torch.uint8)
        self.broadcast([content])
        return _unpickled(content)

    def _from_each(self, value: Any) -> list[Any]:
        if self.world_size == 1:
            return [value]
        content = _pickled(value)
        size = torch.tensor([len(content)], device=self.device)
        sizes = [torch.empty_like(size) for _ in range(self.world_size)]
        dist.all_gather(sizes, size)
        padded = torch.zeros(max(map(int, sizes)), dtype=torch.uint8, device=self.device)
        padded[: len(content)].copy_(content)
        contents = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(contents, padded)
        return [_unpickled(each[: int(length)].cpu()) for each, length in zip(contents, sizes, strict=True)]

    def _cause(self, cause: Exception | None, *, of: int) -> Exception | None:
        return cause if of == self.rank else PeerFailedError(f"rank {of} failed")


def _attempt(action: Callable[[], _Result]) -> tuple[tuple[_Result | None, str | None], Exception | None]:
    """Give (result, None) or (None, what went wrong), fit to be told to other ranks, and the exception."""
    try:
        return (action(), None), None
    except CheckpointError as error:
        return (None, str(error)), error
    except Exception as error:
        return (None, f"{type(error).__name__}: {error}"), error


def _pickled(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _unpickled(content: torch.Tensor) -> Any:
    return pickle.loads(content.numpy().tobytes())  # noqa: S301 - it comes from a rank of this very job
