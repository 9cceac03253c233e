"""The least memory that an optimizer step needs on this rank's device, for a trial that asks whether a GPU has enough.

Counted are weights, buffers, gradients, optimizer state and averaged weights. Activations, DDP's buckets, the
optimizer's temporary tensors and CUDA's own memory come on top.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from smddp.checkpoint.parts.sharded_optimizer import is_sharded
from smddp.display_text import as_memory
from smddp.distributed import tensors_of
from smddp.training.trained_model import TrainedModel

logger = logging.getLogger(__name__)

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class LeastMemory:
    """The memory of one Trainer. It is logged once, with that of the other Trainers that have stepped and are alive."""

    _stepped: ClassVar[WeakSet[LeastMemory]] = WeakSet()

    def __init__(self, model: TrainedModel, world_size: int) -> None:
        self.model = model
        self._world_size = world_size
        self.gradient_bytes = 0
        model.optimizer_step.before_clearing.append(self._count)  # then gradients and optimizer state exist together

    def _count(self) -> None:
        """Log the memory of the first step that changed the weights; do nothing in a step that was skipped."""
        model = self.model
        gradients = [weight.grad for weight in model.optimizer_step.parameters() if weight.grad is not None]
        if not gradients or not (model.optimizer_step.applied or any(each.state for each in model.optimizers)):
            return
        model.optimizer_step.before_clearing.remove(self._count)
        try:
            self.gradient_bytes = sum(_storages(gradients, model.device).values())
            self._stepped.add(self)
            held = _bytes_by_kind(self._stepped)
        except Exception:  # swallowed: nobody asked for the number, and tensors of other libraries have odd forms
            logger.debug("the least memory of a step could not be counted", exc_info=True)
            return
        logger.info(
            "rank 0 of %d needs at least %s of device memory beside activations%s: %s",
            self._world_size,
            as_memory(sum(held.values())),
            ", for its share of a divided model" if any(each.model.is_divided for each in self._stepped) else "",
            ", ".join(f"{as_memory(size)} of {what}" for what, size in held.items() if size),
        )

    def storages(self) -> Iterator[tuple[str, dict[int, int]]]:
        """Yield what lives as long as the Trainer, by kind: the bytes used of each storage on the device."""
        model = self.model
        for kind, module in (("weights", model.module), ("averaged weights", model.ema)):
            if module is not None:
                parameters, buffers = tensors_of(module)
                yield kind, _storages([*parameters, *buffers], model.device)
        for optimizer in model.optimizers:
            state = (optimizer.optim if is_sharded(optimizer) else optimizer).state
            yield "optimizer state", _storages(_tensors_in(dict(state)), model.device)


def _bytes_by_kind(trainers: Iterable[LeastMemory]) -> dict[str, int]:
    """Return the bytes of each kind, of several Trainers. A storage that several tensors share counts once."""
    held = dict.fromkeys(("weights", "gradients", "optimizer state", "averaged weights"), 0)
    counted: set[int] = set()
    for each in trainers:
        for kind, used in each.storages():
            held[kind] += sum(size for key, size in used.items() if key not in counted)
            counted |= used.keys()
        held["gradients"] = max(held["gradients"], each.gradient_bytes)  # a Trainer's gradients end with its step
    return held


def _storages(tensors: Iterable[Tensor], device: torch.device) -> dict[int, int]:
    """Return the bytes that tensors use of each storage on a device, by the storage's address.

    It is the whole storage at most, because a view may show values repeatedly.
    """
    used: dict[int, int] = {}
    for tensor in {id(part): part for whole in tensors for part in _parts(whole)}.values():
        if tensor.device == device:
            storage = tensor.untyped_storage()
            key = storage.data_ptr()
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
