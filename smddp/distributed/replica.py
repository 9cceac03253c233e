"""A model's copy on one rank: DistributedDataParallel for training, the plain model for evaluation.

1. DDP broadcasts the model's buffers (BatchNorm's running statistics) in the first forward pass of an evaluation, too,
   and so hangs if one rank has nothing to evaluate. Here no forward pass waits for another rank; ``share_buffers``
   makes the copies equal, once after each optimizer step.
2. DDP adds gradients in buckets, and after its first step assigns the parameters to buckets anew, in the order in which
   that step happened to compute their gradients. With three ranks or more, another assignment may round differently,
   so the first step after a resume would not be bit-exact. So that first step is rehearsed here, with zero gradients,
   in an order that is always the same.
3. A module may change while it trains: a forward pass assigns a buffer, a script adds, replaces or freezes a layer. So
   the module's tensors are read anew each time, and kept only to detect a change.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import utils
from torch.nn.parallel import DistributedDataParallel

from smddp.display_text import shown_names
from smddp.distributed.collectives import sum_over_ranks
from smddp.distributed.ddp_options import DDPOptions, PowerSGD, register_cast
from smddp.distributed.membership import Membership

logger = logging.getLogger(__name__)

_PIECE = 64 * 2**20
"""Bytes broadcast at a time, and so the memory for a copy."""

_DEFAULTS = DDPOptions()
_UNUSED = "Expected to have finished reduction in the prior iteration"
_UNUSED_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
_SHOWN = 3


class Replica(DistributedDataParallel):
    """One rank's copy of a model; making it gives all ranks the weights and buffers of rank 0.

    The next forward pass with gradients, or ``follow``, notices parameters that are frozen, unfrozen, added, replaced
    or cast, alike on all ranks. Added parameters get rank 0's values. ``accumulates`` is asked before each forward pass
    with gradients: True if another micro-batch of the same step follows, so that its gradients are only added locally.
    ``powersgd`` is PowerSGD's state for a checkpoint, or None. Making it raises ValueError for options that DDP can't
    combine with this model.
    """

    def __init__(
        self,
        module: nn.Module,
        membership: Membership,
        *,
        accumulates: Callable[[], bool] | None = None,
        options: DDPOptions = _DEFAULTS,
    ) -> None:
        if options.static_graph and accumulates is not None:
            raise ValueError("static_graph can't be combined with accumulate, which PyTorch fails at: leave one out")
        if options.sync_batchnorm:
            module = _with_sync_batchnorm(module)
        powersgd = PowerSGD(options, membership) if options.comm_hook == "powersgd" else None
        self._connect(module, membership, options, powersgd)
        self._membership = membership
        self._accumulates = accumulates
        self._options = options
        self.keeps_shared = False
        """Whether to keep the values of shared buffers."""
        self.shared_buffers: list[tuple[list[Tensor], Tensor]] = []
        """With `keeps_shared`: the buffers that the last ``share_buffers`` has made equal, and their values then."""
        self.powersgd = powersgd
        self.averages = False
        """Whether the backward pass of the newest forward pass averages the gradients over the ranks."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run DDP's forward pass with gradients, or without them the model's own, which waits for no rank."""
        if not torch.is_grad_enabled():
            return self._forward_alone(inputs, kwargs)
        weights, _ = tensors_of(self.module)
        if _layout(weights) != self._layout:
            if not any(weight.requires_grad for weight in weights):
                # Frozen for now, like a GAN's critic while the generator learns: no gradient to average.
                return self._forward_alone(inputs, kwargs)
            self._reconnect(weights)
        self.averages = self.require_backward_grad_sync = not (self._accumulates and self._accumulates())
        try:
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if _UNUSED not in str(error):
                raise
            raise ValueError(
                f"the loss before did not depend on {self._unused(str(error))} of the model, whose gradients were not "
                "averaged: use all that is trainable in each loss, freeze the rest by requires_grad_(False), or give "
                "parallel=smddp.DDPOptions(find_unused_parameters=True)"
            ) from error

    def _forward_alone(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model's own forward pass, with a batch of the CPU moved by what DDP moves it with."""
        if self.device_ids and (inputs or kwargs):
            device = torch.device(self.device_type, self.device_ids[0])
            to_device = utils._to_kwargs  # noqa: SLF001, it passes through what `smddp.distributed.move` moves
            (inputs,), (kwargs,) = to_device(inputs, kwargs, device, self.use_side_stream_for_tensor_copies)
        return self.module(*inputs, **kwargs)

    def follow(self) -> None:
        """Give all ranks rank 0's values of layers added or replaced since the last forward pass; collective."""
        weights, _ = tensors_of(self.module)
        if _layout(weights) != self._layout and any(weight.requires_grad for weight in weights):
            self._reconnect(weights)

    def share_buffers(self) -> None:
        """Give all ranks the current buffers of rank 0; all must call it."""
        _, buffers_of_module = tensors_of(self.module)
        self.shared_buffers.clear()
        for shared in broadcast_alike(buffers_of_module):
            if self.keeps_shared:
                self.shared_buffers.append(shared)

    def average_gradients(self) -> None:
        """Average gradients that were only added locally; all ranks must call it."""
        self._add_missing_gradients()
        for weight in self._weights:
            if weight.grad is not None:
                dist.all_reduce(weight.grad)
                weight.grad /= self._membership.cluster.world_size

    def _add_missing_gradients(self) -> None:
        """Add a zero gradient for each one that only other ranks have, so that all average the same ones."""
        used = torch.tensor([weight.grad is not None for weight in self._weights], dtype=torch.int32)
        for weight, is_used in zip(self._weights, sum_over_ranks(used, self._membership).tolist(), strict=True):
            if is_used and weight.grad is None:
                weight.grad = torch.zeros_like(weight)

    def _connect(
        self, module: nn.Module, membership: Membership, options: DDPOptions, powersgd: PowerSGD | None
    ) -> None:
        device = membership.device
        super().__init__(
            module,
            device_ids=[device.index] if _is_on(module, device) else None,
            bucket_cap_mb=options.bucket_cap_mb,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            static_graph=options.static_graph,
            find_unused_parameters=options.find_unused_parameters,
        )
        # No forward pass waits for another rank: `share_buffers` shares the buffers at each optimizer step.
        self.broadcast_buffers = False
        self._weights, _ = tensors_of(module)  # kept alive, so that no id is reused
        self._layout = _layout(self._weights)
        if not options.find_unused_parameters:  # else DDP never rebuilds its buckets
            self._settle_buckets(options)
        # Order: after the rehearsal, which is not a step: the hooks' counters and state begin with the first step.
        register_cast(self, options)
        if powersgd is not None:
            powersgd.register(self, [weight.requires_grad for weight in self._weights])

    def _reconnect(self, weights: Sequence[nn.Parameter]) -> None:
        """Make a new DDP after the parameters changed: DDP reduces only the parameters that it was made with."""
        now = sum(weight.requires_grad for weight in weights)
        if self._membership.cluster.is_main:
            logger.info("%d of the model's %d parameters are trainable now", now, len(weights))
        # Order: average the gradients of earlier micro-batches first. Parameters that are frozen now would not be
        # averaged later, and the rehearsal clears all gradients.
        self.average_gradients()
        layouts = (_layout(weights), self._layout)
        if self.powersgd is not None and len({tuple(each[:-1] for each in layout) for layout in layouts}) > 1:
            self.powersgd.forget("the model has other parameters now")
        gradients = [weight.grad for weight in weights]
        self._connect(self.module, self._membership, self._options, self.powersgd)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient

    def _unused(self, told: str) -> str:
        """Name, for people, the parameters whose indices are in DDP's error."""
        names = [name for name, weight in self.module.named_parameters() if weight.requires_grad]
        numbers = found[1].split() if (found := _UNUSED_INDICES.search(told)) else []
        unused = [names[int(number)] for number in numbers]
        return shown_names(unused, most=_SHOWN) or "some parameters"

    def _settle_buckets(self, options: DDPOptions) -> None:
        module = self.module
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if obstacle := "static_graph" if options.static_graph else _obstacle(module, parameters):
            logger.info(
                "with %s DDP's first step is not rehearsed, and where three ranks or more add, the step "
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


def _layout(weights: Iterable[nn.Parameter]) -> list[tuple[int, torch.dtype, torch.device, bool]]:
    """Return a key of the parameters: their identities, types, devices, and which are trainable. DDP depends on all.

    ``module.half()`` and ``module.to()`` keep the parameter and replace its data, and autograd forgets DDP's hooks.
    """
    return [(id(weight), weight.dtype, weight.device, weight.requires_grad) for weight in weights]


def tensors_of(module: nn.Module) -> tuple[list[nn.Parameter], list[Tensor]]:
    """Return the module's current parameters and buffers, each once, in PyTorch's order.

    It is called at each step, and takes a quarter of the time of ``parameters()`` and ``buffers()``.
    """
    parameters: list[nn.Parameter | None] = []
    buffers: list[Tensor | None] = []
    seen: set[int] = set()
    pending: list[nn.Module | None] = [module]
    while pending:
        part = pending.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        if part._parameters:  # noqa: SLF001
            parameters.extend(part._parameters.values())  # noqa: SLF001
        if part._buffers:  # noqa: SLF001
            buffers.extend(part._buffers.values())  # noqa: SLF001
        if part._modules:  # noqa: SLF001
            pending.extend(reversed(part._modules.values()))  # noqa: SLF001
    unique_parameters = {id(each): each for each in parameters if each is not None}
    unique_buffers = {id(each): each for each in buffers if each is not None}
    return list(unique_parameters.values()), list(unique_buffers.values())


def _with_sync_batchnorm(module: nn.Module) -> nn.Module:
    """Return the module with BatchNorm layers converted to SyncBatchNorm; raise ValueError for a module on the CPU."""
    kinds = {weight.device.type for weight in module.parameters()}
    if "cpu" in kinds:
        raise ValueError(
            "sync_batchnorm needs the model on GPUs, and it is on the CPU, for which PyTorch has no SyncBatchNorm: "
            "leave it out here, such as DDPOptions(sync_batchnorm=torch.cuda.is_available())"
        )
    return nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call, no-any-return]


def broadcast_alike(tensors: Iterable[Tensor]) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Give all ranks the values of rank 0, and yield the tensors of each broadcast with their values in one tensor."""
    for each in alike(tensors, _PIECE):
        # One broadcast of one contiguous tensor.
        together = torch.cat([tensor.detach().reshape(-1) for tensor in each])
        dist.broadcast(together, src=0)
        received = torch.split(together, [tensor.numel() for tensor in each])
        for tensor, values in zip(each, received, strict=True):
            tensor.detach().copy_(values.view_as(tensor))
        yield each, together


def alike(tensors: Iterable[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Yield the tensors in lists of one dtype and device, of at most ``size`` bytes; a larger tensor comes alone."""
    lists: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        key = tensor.dtype, tensor.device
        kept = lists.setdefault(key, [])
        if kept and sum(each.nbytes for each in kept) + tensor.nbytes > size:
            yield lists.pop(key)
            kept = lists.setdefault(key, [])
        kept.append(tensor)
    yield from lists.values()


class _Rehearsal(nn.Module):
    """A module that depends on all parameters of another one, of any dtypes, and on none of their values."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module  # DDP broadcasts its buffers

    def forward(self, parameters: list[nn.Parameter]) -> Tensor:
        """Return zero. Its gradients are computed from the last parameter to the first, about like a model's."""
        return torch.stack([parameter.flatten()[:0].abs().sum().float() for parameter in parameters]).sum()


def _is_on(module: nn.Module, device: torch.device) -> bool:
    """Return whether all of the model is on this one GPU, so that DDP may move inputs there."""
    return device.type != "cpu" and {weight.device for weight in module.parameters()} == {device}


def _obstacle(module: nn.Module, parameters: list[nn.Parameter]) -> str | None:
    """Return why the rehearsal would have side effects or fail, or None."""
    if any(isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse for part in module.modules()):
        return "sparse gradients"  # DDP accepts only sparse ones for these parameters
    if any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters):
        return "hooks on its gradients"  # these may step an optimizer
    return None
