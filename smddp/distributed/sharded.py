"""A model whose weights are divided among the ranks, by torch's `fully_shard` (FSDP2): larger than one device.

1. A forward pass gathers the weights of one layer at a time, so it waits for the other ranks, in an evaluation, too.
2. `fully_shard` replaces the module's parameters. The optimizers, which the script has made before, get the new ones.
3. Between two steps the weights are divided. A forward pass without a backward pass leaves some of them gathered; they
   are divided again before anything looks at them.

FSDP's classes are recognized by name: importing them takes a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from smddp.cluster import Cluster
from smddp.display_text import describe
from smddp.distributed.membership import DataRank, Membership
from smddp.distributed.replica import broadcast_alike, tensors_of
from smddp.dtensor import first_slice, is_dtensor
from smddp.job import Job
from smddp.job.model_parallel import OTHER_DEGREES, SHARD_DEGREE, faults

logger = logging.getLogger(__name__)

_GATHERED = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """How several ranks divide the weights, gradients and optimizer states of a model. With one rank it has no effect.

    Examples:
        >>> Sharded(wrap=(nn.TransformerEncoderLayer,)).shard
        'all'
        >>> Sharded(wrap=())
        Traceback (most recent call last):
        ValueError: wrap=(): give the classes of the layers that are gathered one at a time, such as wrap=(Block,)

    Raises:
        ValueError: A value is out of range.
        TypeError: ``wrap`` has something other than classes of modules.
    """

    wrap: Sequence[type[nn.Module]]
    """The classes of the layers that are gathered one at a time, such as a transformer's block. What is outside of them
    is gathered together."""

    shard: Literal["all", "host"] | int = "all"
    """The number of ranks that the weights are divided among: all, those of a host, or a number that divides the number
    of ranks. With fewer than all, each such group of ranks has a whole copy (HSDP), and sends only gradients to the
    others."""

    reshard_after_forward: bool = True
    """Whether each rank frees a layer's gathered weights after the forward pass, and gathers them again in the backward
    pass. False needs memory for all weights in a step, and sends a third less."""

    gather_as: Literal["bf16", "fp16"] | None = None
    """The type in which the layers of ``wrap`` are gathered, which must be the Trainer's precision: half the memory,
    and half of what is sent. Each rank's pieces and the averages of gradients stay float32. None gathers float32."""

    def __post_init__(self) -> None:
        if isinstance(self.wrap, str) or not isinstance(self.wrap, Sequence):
            raise TypeError(f"wrap is {describe(self.wrap)}: give a tuple of classes, such as wrap=(Block,)")
        if not self.wrap:
            raise ValueError(
                "wrap=(): give the classes of the layers that are gathered one at a time, such as wrap=(Block,)"
            )
        if other := [each for each in self.wrap if not (isinstance(each, type) and issubclass(each, nn.Module))]:
            raise TypeError(f"wrap has {describe(other[0])}, no class of modules: give classes, such as wrap=(Block,)")
        if self.shard not in ("all", "host") and (type(self.shard) is not int or self.shard < 1):
            raise ValueError(f'shard={self.shard!r}: give "all", "host", or a number of ranks, 1 or more')
        if type(self.reshard_after_forward) is not bool:
            raise ValueError(f"reshard_after_forward={self.reshard_after_forward!r}: give True or False")
        if self.gather_as not in (None, *_GATHERED):
            raise ValueError(f"gather_as={self.gather_as!r}: give 'bf16', 'fp16' or None")

    @property
    def gathered_type(self) -> torch.dtype | None:
        """The type in which layers are gathered; None for their own."""
        return None if self.gather_as is None else _GATHERED[self.gather_as]

    @classmethod
    def from_job(
        cls,
        job: Job,
        *,
        wrap: Sequence[type[nn.Module]],
        shard: Literal["all", "host"] | int = "all",
        reshard_after_forward: bool = True,
        gather_as: Literal["bf16", "fp16"] | None = None,
    ) -> Sharded:
        """Return the options that a job asks for by ``smdistributed.modelparallel``, with ``shard`` by its degree.

        Args:
            job: The job, whose ``hybrid_shard_degree`` is the number of ranks that the weights are divided among: all
                of them, with a warning, if the degree is larger than the number of ranks.
            wrap: As in `Sharded`.
            shard: As in `Sharded`, for a job without a degree: without modelparallel, or with SMP's default of 0.
            reshard_after_forward: As in `Sharded`.
            gather_as: As in `Sharded`.

        Examples:
            >>> given = {"SMDDP_RUN_DIR": "/tmp/run-7", "SM_HP_MP_PARAMETERS": '{"hybrid_shard_degree": 1}'}
            >>> Sharded.from_job(Job.detect(given), wrap=(nn.TransformerEncoderLayer,)).shard
            1

        Raises:
            ValueError: The job asks for tensor, context or expert parallelism, or a parameter is unknown or out of
                range.
            TypeError: ``wrap`` has something other than classes of modules.
        """
        parameters = job.mp_parameters or {}
        for found, remedy in faults(parameters):
            raise ValueError(f"mp_parameters of the job: {found}. {remedy}")
        for name in OTHER_DEGREES:
            if (degree := parameters.get(name, 1)) > 1:
                raise ValueError(
                    f"the job asks for {name}={degree}, and smddp.Sharded divides weights alone: give 1, and a larger "
                    f"{SHARD_DEGREE}, or train with AWS's torch.sagemaker instead of smddp.Trainer"
                )
        degree, ranks = parameters.get(SHARD_DEGREE, 0), job.cluster.world_size
        if job.cluster.is_main:
            _log_differences(job.mp_parameters, degree, ranks)
        if degree:
            shard = "all" if degree > ranks else int(degree)
        return cls(wrap=wrap, shard=shard, reshard_after_forward=reshard_after_forward, gather_as=gather_as)


def _log_differences(parameters: Mapping[str, Any] | None, degree: int, ranks: int) -> None:
    if parameters is None:
        logger.info("the job has no mp_parameters: the script alone decides how its weights are divided")
        return
    if 1 < ranks < degree:
        logger.warning(
            "the job asks for %s=%d, and has %d ranks: the weights are divided among all", SHARD_DEGREE, degree, ranks
        )
    known = (SHARD_DEGREE, *OTHER_DEGREES)
    ignored = [f"{name}={value}" for name, value in parameters.items() if name not in known and value is not False]
    if ignored:
        logger.warning("smddp ignores %s of mp_parameters: only AWS's torch.sagemaker has it", ", ".join(ignored))


class ShardedModel(nn.Module):
    """One rank's view of a sharded model; all ranks call it equally often, without gradients, too.

    It is called like a `Replica`, and has the same methods; ``module`` is the model in its precision, ``sharded`` the
    module inside, whose weights are divided.
    """

    def __init__(
        self,
        module: nn.Module,
        sharded: nn.Module,
        membership: Membership,
        *,
        accumulates: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self._units: list[Any] = [each for each in sharded.modules() if is_unit(each)]
        self._sharded = (sharded,)  # in a tuple: its weights are registered once, by `module`
        self._membership = membership
        self._accumulates = accumulates
        self._syncs = True
        self._layout: list[tuple[int, bool]] = []
        self.averages = False
        """Whether the backward pass of the newest forward pass averages the gradients over the ranks."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass; without gradients, divide the gathered weights again."""
        if not torch.is_grad_enabled():
            return self._evaluate(*inputs, **kwargs)
        self.divide()
        self._check_added()
        self.averages = not (self._accumulates and self._accumulates())
        if self._syncs != self.averages:
            self._syncs = self.averages
            for unit in self._units:
                unit.set_requires_gradient_sync(self._syncs, recurse=False)
        return self.module(*inputs, **kwargs)

    def divide(self) -> None:
        """Divide the weights that a forward pass without a backward pass has left gathered; waits for no rank."""
        for unit in self._units:
            unit.reshard()

    def follow(self) -> None:
        """Divide the weights before a save. Raise ValueError if layers have come since that are not divided."""
        self.divide()
        self._check_added()

    def restart(self) -> None:
        """Forget the gradients of an unfinished step, which FSDP keeps until the step's last micro-batch."""
        for unit in self._units:
            group = _weights_of(unit)
            for each in () if group is None else group.fsdp_params:
                if (gathered := getattr(each, "_unsharded_param", None)) is not None:
                    gathered.grad = None
                if "unsharded_accumulated_grad" in vars(each):  # before PyTorch 2.15
                    each.unsharded_accumulated_grad = None

    def _evaluate(self, *inputs: Any, **kwargs: Any) -> Any:
        try:
            # Memory that FSDP makes in inference mode can't be used in training.
            with torch.inference_mode(mode=False), torch.no_grad():
                return self.module(*inputs, **kwargs)
        finally:
            self.divide()

    def _check_added(self) -> None:
        """Raise ValueError for a trainable weight that is not divided: its gradient would differ by rank."""
        layout = [(id(weight), weight.requires_grad) for weight in tensors_of(*self._sharded)[0]]
        if layout != self._layout:
            if (why := why_not_trainable(*self._sharded, self._membership.cluster.world_size)) is not None:
                raise ValueError(
                    f"{why}: make, replace and unfreeze the layers of a sharded model before the Trainer is made"
                )
            self._layout = layout

    def share_buffers(self) -> None:
        """Give all ranks the current buffers of rank 0; all must call it."""
        _, buffers = tensors_of(*self._sharded)
        for _ in broadcast_alike(each for each in buffers if not is_dtensor(each)):
            pass

    def average_gradients(self) -> None:
        """Raise ValueError: gradients that were only added locally are averaged by a backward pass alone."""
        raise ValueError(
            "the batches ended within an optimizer step, and the gradients of a sharded model are averaged only in the "
            "backward pass of the step's last micro-batch: give the dataset to trainer.loader(), whose steps are "
            "whole, and break between two steps; or let the loader give a multiple of accumulate= batches"
        )


def is_unit(module: nn.Module) -> bool:
    """Return whether `fully_shard` was applied to this module."""
    return _is_a(module, "FSDPModule")


def is_flat(module: nn.Module) -> bool:
    """Return whether this module is wrapped by the first FSDP, which hides the layout of its weights."""
    return _is_a(module, "FullyShardedDataParallel")


def _is_a(module: nn.Module, name: str) -> bool:
    return any(each.__name__ == name for each in type(module).__mro__)


def has_shards(module: nn.Module) -> bool:
    """Return whether `fully_shard` was applied to this module or a part of it."""
    return any(map(is_unit, module.modules()))


def why_not_trainable(module: nn.Module, world_size: int) -> str | None:
    """Describe, for people, why the ranks would not average all gradients of a module that is divided; else None."""
    for name, part in module.named_modules():
        if is_flat(part):
            return f"{f'its module {name}' if name else 'it'} is a FullyShardedDataParallel"
    meshes = [group.mesh_info.mesh for group in map(_weights_of, module.modules()) if group is not None]
    if any(first_slice(mesh) != first_slice(meshes[0]) for mesh in meshes):
        return "fully_shard was applied to its layers with different meshes"
    data_ranks = _ranks_of(meshes[0]) if meshes else set()
    divided, most = has_shards(module), 0
    for name, weight in module.named_parameters():
        if not is_dtensor(weight):
            if divided and weight.requires_grad:
                return f"{name} is in no module that fully_shard was applied to, so its gradients differ by rank"
        elif not meshes:
            return f"{name} is a DTensor, and no module is sharded by fully_shard"
        elif weight.requires_grad and not data_ranks <= _ranks_of(weight.device_mesh):  # type: ignore[attr-defined]
            return f"{name} is under tensor parallelism, and in no module that fully_shard was applied to"
        else:
            most = max(most, weight.device_mesh.size())  # type: ignore[attr-defined]
    if meshes and most != world_size:
        return f"its weights are divided among {most} of {world_size} ranks"
    return None


def data_rank_of(module: nn.Module, cluster: Cluster) -> DataRank | None:
    """Return the share of the data that this rank computes on with others, by tensor parallelism; None without it."""
    mesh = next((group.mesh_info.mesh for group in map(_weights_of, module.modules()) if group is not None), None)
    if mesh is None or mesh.size() == cluster.world_size:
        return None
    index = mesh.mesh.flatten().tolist().index(cluster.rank)
    return DataRank(rank=index, size=mesh.size(), first_rank=first_slice(mesh)[index])


def _ranks_of(mesh: Any) -> set[int]:
    return set(mesh.mesh.flatten().tolist())


def _weights_of(module: nn.Module) -> Any:
    """Return the weights that FSDP gathers together for a module; None if there are none."""
    return module._get_fsdp_state()._fsdp_param_group if is_unit(module) else None  # type: ignore[operator]  # noqa: SLF001, there is no public way
