"""The options of DistributedDataParallel, as one value that is checked before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

CommHookName = Literal["fp16", "bf16", "powersgd"]


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
    """Search each step for parameters that its loss does not depend on, such as those of a branch not taken. This costs
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
