"""How many ranks there are and how they divide tensors; ranks are forked, and begin within milliseconds."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from smddp.checkpoint.format.shards import Box, division_of, with_layout_of
from smddp.cluster import Cluster
from smddp.distributed import join
from tests.ports import free_port
from tests.torture.children import Child, fork, torchrun_environ

_LATE_IMPORTS = ("torch._dynamo", "torch.distributed.fsdp", "smddp.training")  # else each rank takes seconds for them


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How many ranks there are, and among how many of them each tensor is divided."""

    ranks: int = 1
    shard: Literal["all"] | int | None = None
    """As in `smddp.Sharded`; None: each rank has whole tensors."""
    tensor: int = 1
    """How many ranks compute each layer together, by tensor parallelism below `fully_shard`."""

    def fork(self, action: Callable[[], None], directory: Path, log: str) -> list[Child]:
        """Start the ranks, each with the environment of a launcher and a log in a directory: ``log-0``, ``log-1``."""
        for name in _LATE_IMPORTS if self.ranks > 1 else ():
            importlib.import_module(name)
        port = free_port() if self.ranks > 1 else 0
        return [
            fork(action, directory / f"{log}-{rank}", torchrun_environ(rank, self.ranks, port))
            for rank in range(self.ranks)
        ]

    def join(self) -> tuple[int, DeviceMesh | None]:
        """Join the other ranks; give this rank, and the mesh that tensors are divided on, or None."""
        cluster = Cluster.detect()
        if self.ranks > 1:
            join(cluster)
        if self.shard is None:
            return cluster.rank, None
        parts = self.ranks if self.shard == "all" else self.shard
        shape = (parts,) if parts == self.ranks else (self.ranks // parts, parts)
        return cluster.rank, init_device_mesh("cpu", shape)


def divided(values: torch.Tensor, mesh: DeviceMesh | None) -> torch.Tensor:
    """Return this rank's piece of values, divided over the last dimension of a mesh; without one as they are."""
    if mesh is None:
        return values
    placements = [*(Replicate() for _ in range(mesh.ndim - 1)), Shard(0)]
    target = DTensor.from_local(
        values.new_empty(0), mesh, placements, run_check=False, shape=values.shape, stride=values.stride()
    )
    piece = values[division_of(target).own.within(Box.whole(values.shape))].contiguous()
    return with_layout_of(target, piece)
