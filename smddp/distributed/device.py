"""The device of a rank, and how a batch gets there."""

from __future__ import annotations

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
    """The batch with its tensors on the device: a tensor, or tuples, lists and dicts of them at any depth.

    Copies from pinned memory do not wait for the GPU. What is no tensor is passed through.
    """
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple):
        moved = [move(item, device) for item in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else tuple(moved)
    if isinstance(batch, list):
        return [move(item, device) for item in batch]
    if isinstance(batch, dict):
        return {key: move(item, device) for key, item in batch.items()}
    return batch
