"""A model whose weights are divided among the ranks, by torch's `fully_shard` (FSDP2): larger than one device.

1. A forward pass gathers the weights of one layer at a time, so it waits for the other ranks, in an evaluation, too.
2. `fully_shard` replaces the module's parameters. The optimizers, which the script has made before, get the new ones.
3. Between two steps the weights are divided. A forward pass without a backward pass leaves some of them gathered; they
   are divided again before anything looks at them.

FSDP's classes are recognized by name: importing them takes a second.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from smddp.distributed.membership import Membership
from smddp.distributed.replica import broadcast_alike, tensors_of
from smddp.dtensor import is_dtensor
from smddp.process.terminal_text import counted, describe

logger = logging.getLogger(__name__)

_SHOWN = 5


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
        self._sharded = sharded
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
            group = unit._get_fsdp_state()._fsdp_param_group  # noqa: SLF001, there is no public way
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
        layout = [(id(weight), weight.requires_grad) for weight in tensors_of(self._sharded)[0]]
        if layout != self._layout:
            if (why := why_not_trainable(self._sharded, self._membership.cluster.world_size)) is not None:
                raise ValueError(
                    f"{why}: make, replace and unfreeze the layers of a sharded model before the Trainer is made"
                )
            self._layout = layout

    def share_buffers(self) -> None:
        """Give all ranks the current buffers of rank 0; all must call it."""
        _, buffers = tensors_of(self._sharded)
        for _ in broadcast_alike(each for each in buffers if not is_dtensor(each)):
            pass

    def average_gradients(self) -> None:
        """Raise ValueError: gradients that were only added locally are averaged by a backward pass alone."""
        raise ValueError(
            "the loader ended within an optimizer step, and the gradients of a sharded model are averaged only in the "
            "backward pass of the step's last micro-batch: give the dataset to trainer.loader(), whose steps are "
            "whole, or let the loader give a multiple of accumulate= batches"
        )


def shard(options: Sharded, module: nn.Module, optimizers: Sequence[Optimizer], membership: Membership) -> None:
    """Divide a module's weights among the ranks, which all begin with those of rank 0, and tell the optimizers.

    It moves the module to the rank's device, a layer at a time. Raise ValueError if it can't be divided so.
    """
    ranks = membership.ranks

    def check() -> tuple[tuple[int, ...], list[nn.Module]]:
        if not hasattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard"):
            raise ValueError(f"parallel=Sharded(...) needs PyTorch 2.6 or later; this is {torch.__version__}")
        return _mesh_shape(options, membership), check_layers(options, module, optimizers)

    mesh_shape, units = ranks.agree(check)
    layouts = ranks.gather(lambda: _layout(module))
    if other := [rank for rank, each in enumerate(layouts) if each != layouts[0]]:
        raise ValueError(
            f"the model of rank {other[0]} has other weights than that of rank 0, by names, shapes, types, or by which "
            "are frozen: make the same model on all ranks"
        )
    for tensor in (*tensors_of(module)[0], *tensors_of(module)[1]):
        _take_from_main(tensor, membership)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    names = ("replicate", "shard")[-len(mesh_shape) :]
    mesh = init_device_mesh(membership.device.type, mesh_shape, mesh_dim_names=names)
    before = dict(module.named_parameters())
    for unit in reversed(units):  # a module's parts come after it, and are sharded before it
        fully_shard(unit, mesh=mesh, reshard_after_forward=options.reshard_after_forward)
    # PyTorch keeps what is outside of the layers gathered until the backward pass, in which it is needed first.
    outer: dict[str, Any] = {} if options.reshard_after_forward else {"reshard_after_forward": False}
    fully_shard(module, mesh=mesh, **outer)
    after = dict(module.named_parameters())
    new = {id(weight): after[name] for name, weight in before.items()}
    for name, weight in before.items():
        for key, value in vars(weight).items():  # marks of the script, such as whether a weight decays
            after[name].__dict__.setdefault(key, value)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [new.get(id(each), each) for each in group["params"]]
    if membership.cluster.is_main:
        copies = f", in {mesh_shape[0]} copies" if len(mesh_shape) > 1 else ""
        logger.info("the weights are divided among %d ranks%s, by %d layers", mesh_shape[-1], copies, len(units))


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
    divided = has_shards(module)
    for name, weight in module.named_parameters():
        if not is_dtensor(weight):
            if divided and weight.requires_grad:
                return f"{name} is in no module that fully_shard was applied to, so its gradients differ by rank"
        elif not divided:
            return f"{name} is a DTensor, and no module is sharded by fully_shard"
        elif weight.device_mesh.size() != world_size:  # type: ignore[attr-defined]
            return f"{name} is divided among {weight.device_mesh.size()} of {world_size} ranks"  # type: ignore[attr-defined]
        elif sum(not each.is_replicate() for each in weight.placements) > 1:  # type: ignore[attr-defined]
            return f"{name} is divided along two dimensions of the mesh, as by tensor parallelism"
    return None


def _mesh_shape(options: Sharded, membership: Membership) -> tuple[int, ...]:
    cluster = membership.cluster
    named = {"all": cluster.world_size, "host": cluster.local_world_size}
    count = options.shard if isinstance(options.shard, int) else named[options.shard]
    if cluster.world_size % count:
        raise ValueError(
            f"shard={options.shard!r} divides the weights among {count} ranks, and {cluster.world_size} ranks are no "
            "multiple of that"
        )
    return (count,) if count == cluster.world_size else (cluster.world_size // count, count)


def check_layers(options: Sharded, module: nn.Module, optimizers: Sequence[Optimizer]) -> list[nn.Module]:
    """Return the layers of a module that are gathered one at a time.

    Raise ValueError if there are none, or if the weights can't be divided, on one rank, too.
    """
    units = [each for each in module.modules() if isinstance(each, tuple(options.wrap)) and each is not module]
    if lists := [each for each in units if type(each).forward is nn.Module.forward]:
        name = type(lists[0]).__name__
        raise ValueError(f"wrap has {name}, which has no forward(): give the class of the layers that it holds")
    if units:
        _check(module, units, optimizers)
    else:
        asked = ", ".join(each.__name__ for each in options.wrap)
        candidates = Counter(type(each).__name__ for each in _layers(module)).most_common(_SHOWN)
        known = (
            ", ".join(f"{name} ({counted(count, 'time')})" for name, count in candidates) or "no layers with weights"
        )
        raise ValueError(f"wrap={asked}: the model holds no module of that class. It holds {known}")
    return units


def _check(module: nn.Module, units: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Raise ValueError for weights that can't be divided, or whose meaning would be lost."""
    of_units = {id(each) for each in units}
    names = [name for name, each in module.named_modules() if id(each) in of_units]
    first: dict[int, tuple[str, str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        if weight.is_meta or is_lazy(weight):
            raise ValueError(
                f"{name} has no values yet ({'on the meta device' if weight.is_meta else 'a lazy layer'}): "
                "parallel=Sharded(...) divides the values that the script has made"
            )
        if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):  # noqa: SLF001
            raise ValueError(
                f"{name} has hooks on its gradient, and a sharded model has other parameters, without them: leave the "
                "hooks out, or shard the model by torch's fully_shard before you register them"
            )
        owner = max((each for each in names if name.startswith(f"{each}.")), key=len, default="")
        tied, other = first.setdefault(id(weight), (name, owner))
        if owner != other:
            raise ValueError(
                f"{name} is the same weight as {tied}, and wrap= puts them into different layers, each of which would "
                "be gathered alone: leave the class of such a layer out of wrap="
            )
    for optimizer in optimizers:
        if optimizer.state:
            raise ValueError(
                f"the optimizer ({type(optimizer).__name__}) has a state already, which is not divided: give one that "
                "has taken no step, and that makes its state in its first step, such as AdamW or SGD"
            )


def _layout(module: nn.Module) -> list[tuple[str, tuple[int, ...], str, bool]]:
    """Return what must be the same on all ranks before they exchange weights."""
    weights = [
        (name, tuple(each.shape), str(each.dtype), each.requires_grad) for name, each in module.named_parameters()
    ]
    return weights + [(name, tuple(each.shape), str(each.dtype), False) for name, each in module.named_buffers()]


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that a list or a sequence of the model holds, which have weights; without any, all modules."""
    lists = [each for each in module.modules() if isinstance(each, nn.ModuleList | nn.Sequential)]
    layers = [layer for each in lists for layer in each] or [each for each in module.modules() if each is not module]
    return (each for each in layers if next(each.parameters(), None) is not None)


def _take_from_main(tensor: Tensor, membership: Membership) -> None:
    """Give a tensor the values of rank 0; collective. A model on the CPU may be larger than the rank's device."""
    values = tensor.detach().contiguous()
    if values.is_cpu:
        membership.ranks.broadcast([values])
    else:
        dist.broadcast(values, src=0)
    if values.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(values)
