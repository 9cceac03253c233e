"""Compress gradients on the network, by PyTorch's own DDP communication hooks.

fp16 and bf16 keep no state between steps. PowerSGD keeps this rank's approximation error, which it adds to the next
step's gradients, and the matrices that the next step starts from. Both belong to the buckets of their step.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from smddp.distributed.ddp_options import DDPOptions
from smddp.distributed.membership import Membership

logger = logging.getLogger(__name__)

_CASTS = {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}


class PowerSGD:
    """PowerSGD's state on one rank, a per-rank part of a checkpoint.

    A state of another number of ranks, or of other trainable parameters, is ignored: then PowerSGD begins anew.
    """

    def __init__(self, options: DDPOptions, membership: Membership) -> None:
        self._options = options
        self._membership = membership
        self._state = self._new()
        self._kept_of: tuple[bool, ...] = ()  # which parameters were trainable: the buckets depend on them
        self._registered_for: tuple[bool, ...] = ()

    def register(self, replica: DistributedDataParallel, trainable: Sequence[bool]) -> None:
        """Compress a replica's gradients from now on; it must have no hook yet.

        ``trainable`` has one flag for each parameter of the model.
        """
        self._registered_for = tuple(trainable)
        # A lambda has no annotations: DDP reads a hook's, and fails at those that are strings.
        replica.register_comm_hook(self, lambda powersgd, bucket: powersgd.average(bucket))

    def forget(self, why: str) -> None:
        """Begin anew, because the kept state belongs to other parameters."""
        if self._state.iter:
            self._begin_anew(why)

    def average(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Average a bucket of gradients over the ranks; DDP calls this hook."""
        state, index, device = self._state, bucket.index(), bucket.buffer().device
        if self._kept_of is not self._registered_for:
            if self._kept_of != self._registered_for:
                self.forget("other parameters are trainable now")
            self._kept_of, state = self._registered_for, self._state
        if index in state.error_dict and state.error_dict[index].device != device:  # loaded on the CPU
            for kept in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
                kept[index] = kept[index].to(device)
        return powerSGD_hook(state, bucket)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next step depends on."""
        state = self._state
        random = state.rng.get_state(legacy=False)
        return {
            "world_size": self._membership.cluster.world_size,
            "rank": self._options.powersgd_rank,
            "trainable": list(self._kept_of),
            "step": state.iter,
            "errors": {str(bucket): error for bucket, error in state.error_dict.items()},
            "ps": {str(bucket): matrices for bucket, matrices in state.p_memory_dict.items()},
            "qs": {str(bucket): matrices for bucket, matrices in state.q_memory_dict.items()},
            "random_keys": torch.from_numpy(random["state"]["key"].astype(np.int64)),
            "random_position": int(random["state"]["pos"]),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore a state of the same number of ranks and the same matrix rank; else begin anew."""
        own = self._membership.cluster.world_size, self._options.powersgd_rank
        if (saved["world_size"], saved["rank"]) != own:
            self._begin_anew(
                f"the checkpoint's is that of {saved['world_size']} ranks and matrices of rank {saved['rank']}, here "
                f"are {own[0]} and {own[1]}"
            )
            return
        state = self._state = self._new()
        self._kept_of = tuple(saved["trainable"])
        state.iter = saved["step"]
        for kept, name in ((state.error_dict, "errors"), (state.p_memory_dict, "ps"), (state.q_memory_dict, "qs")):
            kept.update({int(bucket): tensor.clone() for bucket, tensor in saved[name].items()})
        keys = saved["random_keys"].numpy().astype(np.uint32)
        state.rng.set_state(("MT19937", keys, saved["random_position"], 0, 0.0))

    def _new(self) -> PowerSGDState:
        options = self._options
        return PowerSGDState(
            process_group=None,  # the job's
            matrix_approximation_rank=options.powersgd_rank,
            start_powerSGD_iter=options.powersgd_start_step,
        )

    def _begin_anew(self, why: str) -> None:
        self._state = self._new()
        if self._membership.cluster.is_main:
            logger.info("PowerSGD begins anew, %d steps from now: %s", self._options.powersgd_start_step, why)


def register_cast(replica: DistributedDataParallel, options: DDPOptions) -> None:
    """Send a replica's gradients in half the bytes, if the options say so."""
    if (hook := _CASTS.get(options.comm_hook or "")) is not None:
        replica.register_comm_hook(None, hook)
