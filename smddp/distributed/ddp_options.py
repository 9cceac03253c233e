"""How ranks average gradients: the options of DistributedDataParallel, and compression on the network.

Compression is by PyTorch's own DDP communication hooks. fp16 and bf16 keep no state between steps. PowerSGD keeps this
rank's approximation error, which it adds to the next step's gradients, and the matrices that the next step starts from.
Both belong to the buckets of their step.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from smddp.display_text import counted
from smddp.distributed.membership import Membership

logger = logging.getLogger(__name__)

CommHookName = Literal["fp16", "bf16", "powersgd"]

_CASTS = {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPOptions:
    """How several ranks average their gradients. With one rank, no option has an effect.

    Examples:
        >>> options = DDPOptions(bucket_cap_mb=50, gradient_as_bucket_view=True, comm_hook="bf16")
        >>> DDPOptions(static_graph=True, find_unused_parameters=True)
        Traceback (most recent call last):
        ValueError: static_graph finds unused parameters by itself, in the first step: leave find_unused_parameters out

    Raises:
        ValueError: A value is out of range, or two options exclude each other.
    """

    bucket_cap_mb: float | None = None
    """MiB of gradients in one bucket. None is PyTorch's own choice: 25, and 1 for the first bucket. Smaller buckets
    overlap more of the backward pass, larger ones use the network better."""

    gradient_as_bucket_view: bool = False
    """Let gradients be views of the buckets. This saves as much memory as the gradients take, and one copy a step."""

    static_graph: bool = False
    """Promise that every step uses the same parameters in the same way. PyTorch then allows a parameter to be used
    several times under reentrant gradient checkpointing, and parameters that no step uses. It can't be combined with
    ``accumulate``. DDP learns the graph in the first step, so that step can't be rehearsed: with three ranks or more,
    the step after a resume may differ in the last bits."""

    find_unused_parameters: bool = False
    """Search each step for parameters that its loss does not depend on, such as a skipped branch's. This costs
    a walk over the graph each step. Without it, such a model is an error."""

    sync_batchnorm: bool = False
    """Convert each BatchNorm layer to SyncBatchNorm, with statistics over the batches of all ranks. Needs GPUs."""

    comm_hook: CommHookName | None = None
    """Compression of the gradients on the network. None sends them as they are. ``"fp16"`` and ``"bf16"`` send half the
    bytes, and add in that precision. ``"powersgd"`` sends low-rank matrices (Vogels et al., 2019, arXiv:1905.13727).
    PowerSGD keeps its approximation error on each rank, as large as the gradients. Checkpoints contain it, and each
    save sends it to rank 0, so a resume on the same number of ranks is exact; on another number PowerSGD begins anew.
    NaN or inf of one step stays in the error: a loss scaler, and ``on_nonfinite="skip"`` or ``"stop"``, are refused
    with it."""

    powersgd_rank: int = 1
    """The rank of PowerSGD's matrices. A higher rank is more exact, and sends more. 1 to 4 is usual."""

    powersgd_start_step: int = 1000
    """Optimizer steps before PowerSGD begins, at least 2; until then gradients are sent as they are. PyTorch advises a
    tenth of the training, and at least the warm-up."""

    def __post_init__(self) -> None:
        switches = ("gradient_as_bucket_view", "static_graph", "find_unused_parameters", "sync_batchnorm")
        for name in switches:
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name}={getattr(self, name)!r}: give True or False")
        if self.bucket_cap_mb is not None and not (type(self.bucket_cap_mb) in (int, float) and self.bucket_cap_mb > 0):
            raise ValueError(
                f"bucket_cap_mb={self.bucket_cap_mb!r} must be a number greater than 0; None is PyTorch's own choice"
            )
        if self.static_graph and self.find_unused_parameters:
            raise ValueError(
                "static_graph finds unused parameters by itself, in the first step: leave find_unused_parameters out"
            )
        if self.comm_hook is not None and self.comm_hook not in get_args(CommHookName):
            allowed = ", ".join(repr(name) for name in get_args(CommHookName))
            raise ValueError(f"comm_hook={self.comm_hook!r} is unknown; use one of {allowed}, or None")
        if type(self.powersgd_rank) is not int or self.powersgd_rank < 1:
            raise ValueError(f"powersgd_rank={self.powersgd_rank!r} must be a whole number of at least 1")
        if type(self.powersgd_start_step) is not int or self.powersgd_start_step < 2:
            raise ValueError(
                f"powersgd_start_step={self.powersgd_start_step!r} must be a whole number of at least 2: in the first "
                "steps DDP still arranges its buckets"
            )


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
                f"the checkpoint's is that of {counted(saved['world_size'], 'rank')} and matrices of rank "
                f"{saved['rank']}, here are {own[0]} and {own[1]}"
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
            logger.info(
                "PowerSGD begins anew, %s from now: %s", counted(self._options.powersgd_start_step, "step"), why
            )


def register_cast(replica: DistributedDataParallel, options: DDPOptions) -> None:
    """Send a replica's gradients in half the bytes, if the options say so."""
    if (hook := _CASTS.get(options.comm_hook or "")) is not None:
        replica.register_comm_hook(None, hook)
