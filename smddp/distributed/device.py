"""The device of a rank, and how a batch gets there."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from smddp.cluster import Cluster
from smddp.errors import DistributedError

CPU = torch.device("cpu")


def rank_device(cluster: Cluster) -> torch.device:
    """The GPU whose number is the local rank where there are GPUs, else the CPU.

    Raises:
        DistributedError: If a host has more ranks than GPUs.
    """
    if not torch.cuda.is_available():
        return CPU
    count = torch.cuda.device_count()
    if cluster.local_rank >= count:
        raise DistributedError(
            f"local rank {cluster.local_rank} has no GPU: host {cluster.host} runs {cluster.local_world_size} ranks "
            f"and has {count} (CUDA_VISIBLE_DEVICES counts); start at most {count} processes a host, "
            "or hide the GPUs with CUDA_VISIBLE_DEVICES='' to train on the CPU"
        )
    return torch.device("cuda", cluster.local_rank)


def move(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device, in the types that it came in.

    An object with a method ``to`` is asked to move itself (PackedSequence, transformers' BatchEncoding). Tuples,
    namedtuples, lists, mappings and dataclasses are copied with their items moved, at any depth. Any other object is
    passed through as it is. Copies from pinned memory do not wait for the GPU, where a ``to`` takes ``non_blocking``.
    """
    kind: Any = type(batch)
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(kind, "to", None)):
        moved = batch.to(device, non_blocking=True) if _takes_non_blocking(kind) else batch.to(device)
        return batch if moved is None else moved  # None: it moved in place
    if isinstance(batch, tuple):
        items = [move(item, device) for item in batch]
        return kind._make(items) if hasattr(kind, "_make") else kind(items)
    if isinstance(batch, list):
        items = [move(item, device) for item in batch]
        return items if kind is list else _with_items(batch, dict(enumerate(items)))
    if isinstance(batch, Mapping):
        named = {key: move(item, device) for key, item in batch.items()}
        if kind is dict:
            return named
        return _with_items(batch, named) if isinstance(batch, MutableMapping) else kind(named)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        clone = copy.copy(batch)
        for field in dataclasses.fields(batch):
            if hasattr(batch, field.name):
                object.__setattr__(clone, field.name, move(getattr(batch, field.name), device))  # frozen, maybe
        return clone
    return batch


def _with_items(container: Any, items: Mapping[Any, Any]) -> Any:
    """A copy with other items, and what else belongs to a class of its own."""
    clone = copy.copy(container)
    for key, item in items.items():
        clone[key] = item
    return clone


@functools.cache
def _takes_non_blocking(kind: Any) -> bool:
    try:
        parameters = inspect.signature(kind.to).parameters.values()
    except ValueError:  # written in C, without one
        return False
    return any(each.name == "non_blocking" or each.kind is each.VAR_KEYWORD for each in parameters)
