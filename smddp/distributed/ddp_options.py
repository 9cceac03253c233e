"""What DistributedDataParallel can be told, as one value that is checked before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

CommHookName = Literal["fp16", "bf16", "powersgd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPOptions:
    """How the gradients of several ranks are averaged. With one rank nothing is averaged, and no option has an effect.

    Examples:
        >>> options = DDPOptions(bucket_cap_mb=50, gradient_as_bucket_view=True, comm_hook="bf16")
        >>> DDPOptions(static_graph=True, find_unused_parameters=True)
        Traceback (most recent call last):
        ValueError: static_graph finds unused parameters by itself, in the first step: leave find_unused_parameters out

    Raises:
        ValueError: A value is out of its range, or two options exclude each other.
    """

    bucket_cap_mb: float | None = None
    """MiB of gradients that are averaged at a time. None is PyTorch's own choice: 25, and 1 for those that come first.
    Smaller buckets overlap more of the backward pass, larger ones use the network better."""

    gradient_as_bucket_view: bool = False
    """Let gradients be views of the buckets: saves memory as large as the gradients, and one copy a step."""

    static_graph: bool = False
    """Promise that every step uses the same parameters in the same way. PyTorch then allows a parameter to be used
    several times under reentrant gradient checkpointing, and parameters that no step uses. It can't do it with
    ``accumulate``. The first step is that which it learns from, so that it can't be rehearsed: where three ranks or
    more add, the step after a resume may differ in the last bits."""

    find_unused_parameters: bool = False
    """Look in each step for parameters that its loss does not depend on, such as those of a branch not taken. Costs a
    walk over the graph a step. Without it such a model is an error."""

    sync_batchnorm: bool = False
    """Make each BatchNorm layer a SyncBatchNorm, whose statistics are those of all ranks' batches. Needs GPUs."""

    comm_hook: CommHookName | None = None
    """How gradients travel: None as they are; ``"fp16"`` and ``"bf16"`` in half the bytes, and added up with that
    precision; ``"powersgd"`` as low-rank matrices (Vogels et al., 2019, arXiv:1905.13727). PowerSGD keeps what it left
    out, on each rank as large as the gradients; checkpoints have it, so that a resume on as many ranks is exact, and
    each save sends it to rank 0. On another number of ranks PowerSGD begins anew. NaN or inf of one step stays
    in it: a loss scaler, and ``on_nonfinite="skip"`` or ``"stop"``, are refused beside it."""

    powersgd_rank: int = 1
    """The rank of PowerSGD's matrices: the higher, the more exact and the larger. 1 to 4 is usual."""

    powersgd_start_step: int = 1000
    """Optimizer steps before PowerSGD begins, at least 2; until then gradients travel as they are. PyTorch advises a
    tenth of the training, and no less than the warm-up."""

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
