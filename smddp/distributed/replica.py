"""A model's copy on one rank: DistributedDataParallel for training, the plain model for evaluation.

DDP broadcasts the model's buffers (BatchNorm's running statistics) in the first forward pass of an evaluation too, and
so waits for ever as soon as a rank has nothing to evaluate. Here a forward pass without gradients is the rank's own;
``share_buffers`` makes the copies equal, once before an evaluation.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from smddp.distributed.membership import Membership


class Replica(DistributedDataParallel):
    """One rank's copy of a model; making it gives all ranks the weights and buffers of rank 0."""

    def __init__(self, module: nn.Module, membership: Membership) -> None:
        device = membership.device
        super().__init__(module, device_ids=[device.index] if device.type == "cuda" else None)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """With gradients: DDP's forward pass. Without: the model's own, which waits for nobody."""
        if torch.is_grad_enabled():
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        return self.module(*inputs, **kwargs)

    def share_buffers(self) -> None:
        """Gives all ranks the buffers of rank 0; all must call it."""
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)
