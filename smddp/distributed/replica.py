"""A model's copy on one rank: DistributedDataParallel for training, the plain model for evaluation.

DDP broadcasts the model's buffers (BatchNorm's running statistics) in the first forward pass of an evaluation too, and
so waits for ever as soon as a rank has nothing to evaluate. Here a forward pass without gradients is the rank's own;
``share_buffers`` makes the copies equal, once before an evaluation.

DDP adds gradients up in buckets, and divides the parameters anew among them after its first step, in the order in which
that step happened to compute their gradients. Where three ranks or more add, another division may round otherwise: the
first step after a resume would not be, to the last bit, what it would have been without. So that first step is
rehearsed here, with gradients that are zero, in an order that is always the same.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from smddp.distributed.membership import Membership

logger = logging.getLogger(__name__)


class Replica(DistributedDataParallel):
    """One rank's copy of a model; making it gives all ranks the weights and buffers of rank 0."""

    def __init__(self, module: nn.Module, membership: Membership) -> None:
        device = membership.device
        super().__init__(module, device_ids=[device.index] if device.type == "cuda" else None)
        self._settle_buckets()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """With gradients: DDP's forward pass. Without: the model's own, which waits for nobody."""
        if torch.is_grad_enabled():
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        return self.module(*inputs, **kwargs)

    def share_buffers(self) -> None:
        """Gives all ranks the buffers of rank 0; all must call it."""
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)

    def _settle_buckets(self) -> None:
        module = self.module
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if obstacle := _obstacle(module, parameters):
            logger.info(
                "the model has %s: DDP's first step is not rehearsed, and where three ranks or more add, the step "
                "after a resume may differ in the last bits",
                obstacle,
            )
            return
        self.module = _Rehearsal(module)
        try:
            with torch.enable_grad():
                super().forward(parameters).backward()  # type: ignore[no-untyped-call]
        finally:
            self.module = module
        for parameter in parameters:
            parameter.grad = None


class _Rehearsal(nn.Module):
    """Depends on all parameters of a module, whatever their dtypes, and on none of their values."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module  # whose buffers DDP broadcasts

    def forward(self, parameters: list[nn.Parameter]) -> Tensor:
        """A zero. Its gradients are computed from the last parameter to the first, about as a model's are."""
        return torch.stack([parameter.flatten()[:0].abs().sum().float() for parameter in parameters]).sum()


def _obstacle(module: nn.Module, parameters: list[nn.Parameter]) -> str | None:
    """What would make a rehearsal more than that, or nothing."""
    if any(isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse for part in module.modules()):
        return "sparse gradients"  # DDP wants none that are not
    if any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters):
        return "hooks on its gradients"  # which may be an optimizer's
    return None
