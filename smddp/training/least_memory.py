"""The least memory that an optimizer step needs on this rank's device.

Counted are weights, buffers, gradients, DDP's buckets, optimizer state and averaged weights, of all Trainers of the
process. Activations, the optimizer's temporary tensors and CUDA's own memory come on top.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from smddp.checkpoint.parts.sharded_optimizer import is_sharded
from smddp.distributed import tensors_of
from smddp.training.trained_model import TrainedModel

logger = logging.getLogger(__name__)

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class LeastMemory:
    """The memory of one Trainer, which is logged once, together with the memory of the process's other Trainers."""

    # A Trainer that has been deleted is not in the sum.
    _live: ClassVar[WeakSet[LeastMemory]] = WeakSet()

    def __init__(self, model: TrainedModel, world_size: int) -> None:
        self._model = model
        self._world_size = world_size
        self._gradients: list[Tensor] = []
        self.gradient_bytes = 0
        # A hook runs while gradients and optimizer state exist together, and not for a step that a loss scaler skips.
        self._hooks = [each.register_step_post_hook(self._keep_gradients) for each in model.optimizers]
        self.is_divided = model.is_divided
        self._live.add(self)

    def after_step(self) -> None:
        """Log the memory after the first step that the optimizers took."""
        if not self._hooks or not self._gradients:
            return
        while self._hooks:
            self._hooks.pop().remove()
        self.gradient_bytes = sum(_storages(self._gradients).values())
        self._gradients.clear()
        stepped = [each for each in self._live if each.gradient_bytes]
        held = {what: size / 2**20 for what, size in _bytes_by_kind(stepped).items() if size}
        divided = any(each.is_divided for each in stepped)
        logger.info(
            "rank 0 of %d needs at least %.1f MiB of device memory beside activations%s: %s",
            self._world_size,
            sum(held.values()),
            ", for its share of a divided model" if divided else "",
            ", ".join(f"{size:.1f} MiB of {what}" for what, size in held.items()),
        )

    def _keep_gradients(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        self._gradients += [weight.grad for weight in weights if weight.grad is not None]

    def tensors(self) -> Iterator[tuple[str, list[Tensor]]]:
        """Yield the tensors that live as long as the Trainer, by kind."""
        model = self._model
        for kind, module in (("weights", model.module), ("averaged weights", model.ema)):
            if module is not None:
                parameters, buffers = tensors_of(module)
                yield kind, [*parameters, *buffers]
        for optimizer in model.optimizers:
            state = (optimizer.optim if is_sharded(optimizer) else optimizer).state
            yield "optimizer state", list(_tensors_in(dict(state)))

    def bucket_bytes(self) -> int:
        """Return the bytes of the buckets in which DDP copies the gradients; 0 if the gradients are views of them."""
        replica = self._model.model
        if not isinstance(replica, DistributedDataParallel) or replica.gradient_as_bucket_view:
            return 0
        return sum(_storages(weight for weight in replica.parameters() if weight.requires_grad).values())


def _bytes_by_kind(trainers: Iterable[LeastMemory]) -> dict[str, int]:
    """Return the bytes of each kind, of several Trainers. A storage that several tensors share counts once."""
    held = dict.fromkeys(("weights", "gradients", "DDP's buckets", "optimizer state", "averaged weights"), 0)
    storages: dict[tuple[torch.device, int], int] = {}
    for each in trainers:
        for kind, tensors in each.tensors():
            found = {key: size for key, size in _storages(tensors).items() if key not in storages}
            storages |= found
            held[kind] += sum(found.values())
        held["gradients"] = max(held["gradients"], each.gradient_bytes)  # a Trainer's gradients end with its step
        held["DDP's buckets"] += each.bucket_bytes()
    return held


def _storages(tensors: Iterable[Tensor]) -> dict[tuple[torch.device, int], int]:
    """Return the bytes that tensors use of each storage: all of it at most, for a view may show values repeatedly."""
    used: dict[tuple[torch.device, int], int] = {}
    for tensor in {id(part): part for whole in tensors for part in _parts(whole)}.values():
        storage = tensor.untyped_storage()
        key = (tensor.device, storage.data_ptr())
        used[key] = min(used.get(key, 0) + tensor.numel() * tensor.element_size(), storage.nbytes())
    return used


def _tensors_in(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of an optimizer's state, in dicts and lists at any depth."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, (dict, list, tuple)):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _tensors_in(value)


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the plain tensors that a tensor consists of on this rank."""
    if is_lazy(tensor):
        return
    if hasattr(tensor, "__tensor_flatten__"):  # a DTensor, a quantized weight
        for part in (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]):
            if isinstance(part, Tensor):  # not the mesh of a DTensor
                yield from _parts(part)
    elif tensor.layout == torch.strided:
        yield tensor
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())  # noqa: SLF001
    elif tensor.layout in _COMPRESSED:
        yield tensor.values()
