"""Importing this registers the backend "smddp" with torch.distributed, as Amazon's module of this name does.

Gloo carries the tensors, so that it works on the CPU. What AWS documents as impossible under
DistributedDataParallel is impossible here, and so is what SMDDP 1.x did not list among its collectives, so that code
that passes here asks nothing unusual of the real library.
https://docs.aws.amazon.com/sagemaker/latest/dg/data-parallel-modify-sdp-pt.html
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

_REDUCTIONS = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX)


class ProcessGroupSmddp(dist.ProcessGroup):
    """all_reduce, all_gather, broadcast and barrier of the one process group there may be."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(kind)
        self._register_backend(torch.device("cpu"), kind, self._gloo)

    def getBackendName(self) -> str:  # noqa: N802 - as PyTorch calls it
        return "smddp"

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        if not any(opts.reduceOp == reduction for reduction in _REDUCTIONS):
            raise RuntimeError("smddp reduces by SUM, MIN and MAX only")
        return self._only_group().allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        return self._only_group().broadcast(tensors, opts)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Any:
        return self._only_group().allgather(outputs, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, part: torch.Tensor, opts: Any) -> Any:
        # What all_gather_object calls. A group made in Python must have it: PyTorch's own waits for a thread of gloo's
        # with the GIL held, and that thread may wait for the GIL, to let go of a tensor.
        return self._only_group().all_gather_single(output, part, opts)

    def barrier(self, opts: Any) -> Any:
        return self._only_group().barrier(opts)

    def _only_group(self) -> dist.ProcessGroupGloo:
        if dist.get_pg_count() > 1:
            raise RuntimeError("smddp can't be used beside another process group, of whatever backend")
        return self._gloo


def _refuse(name: str) -> Any:
    def collective(self: ProcessGroupSmddp, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"smddp has no {name}")

    return collective


for _name in ("reduce", "gather", "scatter", "reduce_scatter", "alltoall", "send", "recv", "monitored_barrier"):
    setattr(ProcessGroupSmddp, _name, _refuse(_name))


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupSmddp:
    if dist.is_initialized():
        raise RuntimeError("smddp supports no new_group()")
    return ProcessGroupSmddp(store, rank, size, timeout)


dist.Backend.register_backend("smddp", _create, devices=["cpu"])
