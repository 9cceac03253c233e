"""Check, before the first step, that a model and its optimizers can be trained together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from smddp.checkpoint.format.shards import Box, division_of
from smddp.checkpoint.parts.sharded_optimizer import is_sharded
from smddp.display_text import describe
from smddp.distributed import DataRank, DDPOptions, Membership, Sharded, has_shards, why_not_trainable
from smddp.distributed.ddp_options import CommHookName
from smddp.dtensor import is_dtensor, local_values
from smddp.job import Job
from smddp.job.model_parallel import SHARD_DEGREE
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.training.nonfinite import OnNonfinite
from smddp.training.optimizer_step import ScheduleEach
from smddp.training.precision import Precision

_TRAINED_APART = (
    "that are not the model's: checkpoints would leave them out, and several ranks would train them apart; make them a "
    "part of the model, as of one nn.Module that holds both"
)

logger = logging.getLogger(__name__)


def underlying_module(model: nn.Module, world_size: int) -> nn.Module:
    """Return the module whose parameter names are saved: the one inside ``torch.compile``, or the model itself.

    Raise ValueError if the model is replicated already, or is sharded so that ranks would not average all gradients.
    """
    module = getattr(model, "_orig_mod", model)  # torch._dynamo.OptimizedModule; to import its class takes a second
    assert isinstance(module, nn.Module)
    if isinstance(module, DistributedDataParallel | DataParallel):
        raise ValueError(
            f"the model is wrapped in {type(module).__name__}, and would be saved under other names: give the module "
            "itself; the Trainer replicates it over the ranks"
        )
    if (why := why_not_trainable(module, world_size)) is not None:
        raise ValueError(
            f"the model is sharded in a way that the Trainer can't train: {why}. Give the plain module, with "
            "parallel=smddp.Sharded(wrap=(Block,)), or apply torch's fully_shard to all of it: over all ranks, or "
            "over all ranks but those of tensor parallelism, such as mesh['data'], even if that has one rank"
        )
    return module


def check_model_parallel(job: Job, model: nn.Module, parallel: DDPOptions | Sharded) -> None:
    """Raise ValueError if a job asks for model parallelism, and each rank would have the whole model.

    Warn if the script divides it in another way.
    """
    degree = (job.mp_parameters or {}).get(SHARD_DEGREE)
    if degree and isinstance(parallel, Sharded) and parallel.shard != degree <= job.cluster.world_size:
        if job.cluster.is_main:
            logger.warning(
                "the job asks for %s=%s, and the script has shard=%r: smddp.Sharded.from_job(job, wrap=...) takes the "
                "job's",
                SHARD_DEGREE,
                degree,
                parallel.shard,
            )
        return
    if job.mp_parameters is not None and not isinstance(parallel, Sharded) and not has_shards(model):
        raise ValueError(
            "the job asks for smdistributed.modelparallel, and each rank would have the whole model: give "
            "parallel=smddp.Sharded.from_job(job, wrap=(Block,)), or leave modelparallel out of the job's distribution"
        )


def check_sharded(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    precision: Precision,
    parallel: DDPOptions | Sharded,
    *,
    is_divided: bool,
    ema: float | None,
    move_model: bool,
) -> None:
    """Raise ValueError for what a model whose weights are divided among the ranks can't be combined with.

    The model will be divided as ``parallel`` says, or ``is_divided`` already.
    """
    if is_divided and isinstance(parallel, Sharded):
        raise ValueError("the model is sharded by fully_shard already: leave parallel=smddp.Sharded(...) out")
    if hasattr(model, "_orig_mod") or model._compiled_call_impl is not None:  # noqa: SLF001, by model.compile()
        raise ValueError("a sharded model can't be compiled as a whole: compile its layers, by layer.compile()")
    gathered = parallel.gather_as if isinstance(parallel, Sharded) else None
    if gathered not in (None, precision.name):
        raise ValueError(
            f"gather_as={gathered!r} gathers weights for that precision, and the Trainer computes in {precision.name}: "
            f"give it precision={gathered!r}, or leave gather_as out"
        )
    if precision.name in ("O2", "O3"):
        raise ValueError(
            f"precision={precision.requested!r} keeps half copies of whole weights, and those of a sharded model are "
            "divided among the ranks: use 'bf16', 'fp16' or 'fp32'"
        )
    if is_divided and ema is not None:
        raise ValueError(
            f"ema={ema} needs a copy of the model, and fully_shard has made this one uncopyable: let "
            "parallel=smddp.Sharded(...) divide it"
        )
    if not move_model:
        raise ValueError("move_model=False leaves weights where they are, and a sharded model's are on all ranks")
    if any(map(is_sharded, optimizers)):
        raise ValueError(
            "a sharded model's optimizer states are divided as its weights are: give the optimizer that the "
            "ZeroRedundancyOptimizer wraps"
        )


def check_common_pieces(module: nn.Module, membership: Membership) -> None:
    """Raise ValueError if ranks with the same piece of a weight begin with different values; collective."""

    def own() -> list[tuple[str, Box, str]]:
        weights = [(name, weight.detach()) for name, weight in module.named_parameters() if is_dtensor(weight)]
        return [(name, division_of(weight).own, _sum(local_values(weight))) for name, weight in weights]

    first: dict[tuple[str, Box], tuple[int, str]] = {}
    for rank, pieces in enumerate(membership.ranks.gather(own)):
        for name, box, total in pieces:
            other, expected = first.setdefault((name, box), (rank, total))
            if total != expected:
                raise ValueError(
                    f"ranks {other} and {rank} have the same piece of {name}, with different values: make the model "
                    "with the same seed on all ranks, such as torch.manual_seed(0), before the Trainer is made"
                )


def _sum(values: Tensor) -> str:
    return repr(values.sum(dtype=torch.complex128 if values.is_complex() else torch.float64).item())


def check_optimizers(
    optimizers: Sequence[Optimizer], module: nn.Module, beside: Callable[[], Sequence[Tensor]], *, world_size: int
) -> None:
    """Raise TypeError for an object that is not an optimizer, and ValueError for one that would not train this model.

    An optimizer may have no parameters outside of the model: checkpoints would leave them out, and ranks would not
    average them. On one rank it may have those of ``beside``, which checkpoints contain.
    """
    if not optimizers:
        raise ValueError("there is no optimizer, and nothing would be trained: give one, or a list of several")
    for optimizer in optimizers:
        if isinstance(optimizer, type) or not hasattr(optimizer, "param_groups"):
            raise TypeError(
                f"the optimizer is {describe(optimizer)}: make it first, such as "
                "torch.optim.SGD(model.parameters(), lr=0.1)"
            )
    if not any(weight.requires_grad for weight in module.parameters()):
        raise ValueError(
            "no parameter of the model requires a gradient, and nothing would be trained: leave at least one unfrozen "
            "while the Trainer is made"
        )
    for optimizer in optimizers:
        if isinstance(optimizer, LBFGS):
            raise ValueError(
                "LBFGS computes the loss several times a step, which trainer.step(loss) cannot: write that loop with "
                "smddp.Checkpointer and job.stopping"
            )
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        strangers = _not_of(module.parameters(), weights)
        kind = f"the optimizer ({type(optimizer).__name__})"
        if strangers == len(weights):
            raise ValueError(
                f"{kind} has none of the model's parameters, and would train nothing: make it from "
                "model.parameters() of this model, after every change of its layers"
            )
        if strangers and world_size == 1:
            strangers = _not_of([*module.parameters(), *beside()], weights)
        if strangers:
            raise ValueError(f"{kind} has {strangers} of {len(weights)} parameters {_TRAINED_APART}")


def check_added_parameters(weights: Sequence[Tensor], module: nn.Module) -> None:
    """Raise ValueError if an optimizer's new parameters are not the model's: the ranks would not average them."""
    if strangers := _not_of(module.parameters(), weights):
        raise ValueError(f"an optimizer was given {strangers} of {len(weights)} new parameters {_TRAINED_APART}")


def _not_of(parameters: Iterable[Tensor], weights: Sequence[Tensor]) -> int:
    """Return how many of the weights are not among the parameters."""
    own = {id(weight) for weight in parameters}
    return sum(id(weight) not in own for weight in weights)


def check_sharded_optimizers(
    optimizers: Sequence[Optimizer], module: nn.Module, *, device: torch.device | None, world_size: int
) -> None:
    """Raise ValueError for a ZeroRedundancyOptimizer that can't be stepped, saved, or kept while the model moves.

    Call it before the model is moved to ``device``; None leaves the model where it is.
    """
    is_meta = any(weight.is_meta for weight in module.parameters())
    moves = device is not None and any(weight.device != device for weight in module.parameters())
    for optimizer in filter(is_sharded, optimizers):
        if not hasattr(optimizer, "optim"):  # DDP's hook makes it later
            raise ValueError(
                "ZeroRedundancyOptimizer(overlap_with_ddp=True) steps within DDP's backward pass, where nothing can "
                "be clipped, skipped or scheduled: leave overlap_with_ddp out"
            )
        if optimizer.world_size != world_size:
            raise ValueError(
                f"the ZeroRedundancyOptimizer is divided among {optimizer.world_size} ranks, and the job has "
                f"{world_size}: leave its process_group out"
            )
        if is_meta:
            raise ValueError(
                "the ZeroRedundancyOptimizer keeps parameters of its own, and a model on the meta device gets others: "
                "make the model on the CPU"
            )
        if moves and optimizer.parameters_as_bucket_view:
            raise ValueError(
                f"the model will be moved to {device}, and parameters_as_bucket_view=True would keep updating it where "
                "it is: move the model before the ZeroRedundancyOptimizer is made, or leave that option out"
            )


def check_schedulers(schedulers: Sequence[LRScheduler], each: str, optimizers: Sequence[Optimizer]) -> None:
    """Raise TypeError for an object that is not a schedule, and ValueError for one that can't be stepped here.

    A schedule must belong to one of these optimizers, and need no metric.
    """
    for scheduler in schedulers:
        if isinstance(scheduler, type) or not hasattr(scheduler, "step"):
            raise TypeError(
                f"the schedule is {describe(scheduler)}: make it first, such as "
                "smddp.warmup_cosine(optimizer, warmup_steps=100, total_steps=10_000)"
            )
        # Compare parameter groups: an optimizer may wrap the one that the schedule knows.
        scheduled = getattr(getattr(scheduler, "optimizer", None), "param_groups", [])
        if scheduled and not {id(group) for optimizer in optimizers for group in optimizer.param_groups} & set(
            map(id, scheduled)
        ):
            raise ValueError(
                f"the schedule ({type(scheduler).__name__}) is that of another optimizer, and would change no learning "
                "rate here: make it from the optimizer that the Trainer gets"
            )
    if each not in get_args(ScheduleEach):
        raise ValueError(f'schedule_each={each!r}: give "step" (an optimizer step) or "epoch"')
    if any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in schedulers):
        raise ValueError(
            "ReduceLROnPlateau waits for a metric, which neither an optimizer step nor an epoch's end has: give it as "
            'state={"plateau": scheduler}, and call scheduler.step(metric) after each evaluation'
        )


def check_comm_hook(hook: CommHookName | None, precision: Precision, on_nonfinite: OnNonfinite | None) -> None:
    """Raise ValueError if PowerSGD would carry gradients that are not finite into later steps."""
    if hook != "powersgd":
        return
    keeps = "comm_hook='powersgd' adds what it left out of a step's gradients to the next ones, NaN and inf too"
    if precision.scaler() is not None:
        raise ValueError(
            f"{keeps}, and precision={precision.requested!r} has a loss scaler, which skips steps whose gradients "
            "overflow: no later one would be taken; use 'bf16' or 'fp32', or comm_hook='fp16'"
        )
    if on_nonfinite in ("skip", "stop"):
        raise ValueError(
            f"{keeps}: on_nonfinite={on_nonfinite!r} would find no good step any more; give on_nonfinite='raise', "
            "whose rerun begins with what the newest checkpoint holds, or another comm_hook"
        )


def check_scaled_weights(module: nn.Module, precision: str) -> None:
    """Raise ValueError for float16 weights under a loss scale: it can be undone only in float32 gradients."""
    half = [name for name, weight in module.named_parameters() if weight.requires_grad and weight.dtype == torch.half]
    if half:
        raise ValueError(
            f"precision={precision!r} scales the loss, which gradients in float32 must undo, and the weights "
            f"({half[0]} first) are in float16: give them in float32, model.float(); the forward pass is in half anyway"
        )


def check_scaled_meshes(share: DataRank | None, precision: str) -> None:
    """Raise ValueError for a loss scale under tensor parallelism: PyTorch's ranks would not agree on an overflow."""
    if share is not None:
        raise ValueError(
            f"precision={precision!r} skips steps whose gradients overflow, and PyTorch lets ranks of a model under "
            "tensor parallelism skip different ones: use 'bf16' or 'fp32'"
        )


def check_clipping(clip_norm: float | None, clip_value: float | None) -> None:
    """Raise ValueError if both clip_norm and clip_value are set."""
    if clip_norm is not None and clip_value is not None:
        raise ValueError(
            f"clip_norm={clip_norm} and clip_value={clip_value}: give one of them; clip_norm keeps the gradient's "
            "direction, clip_value bounds each of its elements"
        )


def why_not_inner(policy: CheckpointPolicy, on_nonfinite: OnNonfinite | None, *, measures: bool) -> str | None:
    """Return why a Trainer with these options can't be an inner one, in another's ``state=``; None if it can.

    ``on_change`` is the only option of its checkpoint policy that it may set. ``measures`` says that it times or
    profiles.
    """
    if on_nonfinite == "stop":
        return "on_nonfinite='stop' saves, and a Trainer in state= has no checkpoints: use 'raise' or 'skip'"
    if on_nonfinite == "rewind":
        return "on_nonfinite='rewind' loads a checkpoint, and a Trainer in state= has none: use 'raise' or 'skip'"
    if measures:
        return "a Trainer in state= has no loop to measure: give timing= and profile= to the other one"
    if replace(policy, on_change="keep") != CheckpointPolicy():
        return "a Trainer in state= is saved by the other one: give checkpoints= to that (on_change is each one's own)"
    return None
