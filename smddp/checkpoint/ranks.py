"""The ranks that share a checkpoint: rank 0 works, all ranks learn how it went, and none is left waiting.

An error on one rank becomes the same CheckpointError on every rank; on the others its cause is a PeerFailedError, so
that the job's failure is told by the rank that has it. Without torch.distributed there is one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from smddp.distributed import PeerFailedError
from smddp.errors import CheckpointError

_Result = TypeVar("_Result")

_PIECE = 256 * 2**20  # bytes broadcast at a time


@dataclass(kw_only=True, slots=True, frozen=True)
class Ranks:
    """This process among those of the default process group. Every method is called on all of them."""

    rank: int
    world_size: int

    @classmethod
    def current(cls) -> Ranks:
        """Look at the process group as it is now.

        Raises:
            CheckpointError: it cannot carry tensors that lie on the CPU.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return cls(rank=0, world_size=1)
        backend = dist.get_backend_config()
        if "cpu:" not in backend:
            raise CheckpointError(
                f"the process group's backend is {backend!r}, which does not carry CPU tensors, and checkpoints "
                'travel in those; use init_process_group(backend="cpu:gloo,cuda:nccl")'
            )
        return cls(rank=dist.get_rank(), world_size=dist.get_world_size())

    def on_main(self, action: Callable[[], _Result]) -> _Result:
        """Do something on rank 0 and give its (small) result to every rank.

        Raises:
            CheckpointError: it failed on rank 0; on every rank.
        """
        outcome, cause = _attempt(action) if self.rank == 0 else ((None, None), None)
        if self.world_size > 1:
            shared: list[Any] = [outcome]
            dist.broadcast_object_list(shared, src=0)
            (outcome,) = shared
        result, failure = outcome
        if failure is not None:
            raise CheckpointError(failure) from self._cause(cause, of=0)
        return result  # type: ignore[return-value]

    def on_each(self, action: Callable[[], _Result]) -> list[_Result]:
        """Do something on every rank and give all (small) results to every rank, in the order of the ranks.

        Raises:
            CheckpointError: it failed on some rank; on every rank.
        """
        outcome, cause = _attempt(action)
        outcomes: list[Any] = [outcome]
        if self.world_size > 1:
            outcomes = [None] * self.world_size
            dist.all_gather_object(outcomes, outcome)
        for rank, (_, failure) in enumerate(outcomes):
            if failure is not None:
                text = f"rank {rank}: {failure}" if self.world_size > 1 else failure
                raise CheckpointError(text) from self._cause(cause, of=rank)
        return [result for result, _ in outcomes]

    def broadcast(self, content: torch.Tensor | None, size: int) -> torch.Tensor:
        """Give the bytes that rank 0 has to every rank.

        Args:
            content: on rank 0 a flat tensor of uint8 on the CPU; elsewhere not looked at.
            size: its bytes, known to every rank.
        """
        if self.rank != 0:
            content = torch.empty(size, dtype=torch.uint8)
        assert content is not None
        if self.world_size > 1:
            for start in range(0, size, _PIECE):
                dist.broadcast(content[start : start + _PIECE], src=0)
        return content

    def _cause(self, cause: Exception | None, *, of: int) -> Exception | None:
        return cause if of == self.rank else PeerFailedError(f"rank {of} failed")


def _attempt(
    action: Callable[[], _Result],
) -> tuple[tuple[_Result | None, str | None], Exception | None]:
    """Give (result, None) or (None, what went wrong), fit to be told to other ranks, and the exception."""
    try:
        return (action(), None), None
    except CheckpointError as error:
        return (None, str(error)), error
    except Exception as error:
        return (None, f"{type(error).__name__}: {error}"), error
