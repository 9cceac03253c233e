"""Divides a model's weights among the ranks, by torch's `fully_shard`, and draws those that have no values.

One layer after another gets its values, then those of rank 0, and is divided then: so no rank needs the memory of more
than one whole layer on its device. The optimizers, which the script has made before, get the new parameters.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from smddp.accelerator import move_module
from smddp.display_text import counted
from smddp.distributed.ddp_options import DDPOptions
from smddp.distributed.membership import Membership
from smddp.distributed.meta_device import draw_values, give_memory, has_no_values, without_values
from smddp.distributed.replica import tensors_of
from smddp.distributed.sharded import Sharded, has_shards
from smddp.dtensor import is_dtensor, local_values

logger = logging.getLogger(__name__)

_SHOWN = 5


def prepare_weights(
    parallel: DDPOptions | Sharded,
    module: nn.Module,
    optimizers: Sequence[Optimizer],
    membership: Membership,
    *,
    device: torch.device | None,
    copies: bool,
) -> nn.Module | None:
    """Put a module's weights where the ranks compute with them, divided if that is asked for; collective.

    ``device`` of None leaves the module where it is. If the module was divided and ``copies`` is set, return its
    copy without values, for `divide_copy`.
    """
    if isinstance(parallel, Sharded) and membership.cluster.world_size > 1:
        outline = without_values(module) if copies else None
        shard(parallel, module, optimizers, membership)
        return outline
    if isinstance(parallel, Sharded):  # one rank refuses what several refuse
        check_layers(parallel, module, optimizers)
    if has_no_values(module):
        _draw(parallel, module, optimizers, device)
    if device is not None:
        move_module(module, device)
    return None


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
            f"the model of rank {other[0]} has other weights than that of rank 0, by names, shapes, types, devices, or "
            "by which are frozen: make the same model on all ranks"
        )
    from torch.distributed.device_mesh import init_device_mesh

    seed = _draw_seed()

    def fill(layer: nn.Module) -> None:
        draw_values(layer, module, membership.device, seed)
        for weight in tensors_of(layer)[0]:
            if not is_dtensor(weight):
                _take_from_main(weight, membership)

    names = ("replicate", "shard")[-len(mesh_shape) :]
    mesh = init_device_mesh(membership.device.type, mesh_shape, mesh_dim_names=names)
    before = dict(module.named_parameters())
    _divide(options, module, mesh, fill)
    for buffer in tensors_of(module)[1]:
        _take_from_main(buffer, membership)
    _replace_parameters(optimizers, before, module)
    if membership.cluster.is_main:
        copies = f", in {mesh_shape[0]} copies" if len(mesh_shape) > 1 else ""
        logger.info(
            "the weights are divided among %s%s, by %s",
            counted(mesh_shape[-1], "rank"),
            copies,
            counted(len(units), "layer"),
        )


def _draw(
    parallel: DDPOptions | Sharded, module: nn.Module, optimizers: Sequence[Optimizer], device: torch.device | None
) -> None:
    """Draw the values of a module on the meta device, layer by layer: one rank refuses what `shard` refuses."""
    if has_shards(module):
        raise ValueError(
            "the model is on the meta device, and sharded by fully_shard: give it values before the Trainer is made, "
            "or let parallel=smddp.Sharded(...) divide it and draw its values"
        )
    if device is None:
        raise ValueError("the model is on the meta device, and move_model=False leaves it there: leave that option out")
    _check_replaceable(module, optimizers)
    before, seed = dict(module.named_parameters()), _draw_seed()
    layers = _layers_of(parallel, module) if isinstance(parallel, Sharded) else []
    for layer in (*reversed(layers), module):
        draw_values(layer, module, device, seed)
    _replace_parameters(optimizers, before, module)


def _draw_seed() -> int:
    return int(torch.randint(2**62, ()))


def _replace_parameters(optimizers: Sequence[Optimizer], before: Mapping[str, nn.Parameter], module: nn.Module) -> None:
    """Give the optimizers a module's new weights in place of those before."""
    after = dict(module.named_parameters())
    new = {id(weight): after[name] for name, weight in before.items()}
    for name, weight in before.items():
        for key, value in vars(weight).items():  # marks of the script, such as whether a weight decays
            after[name].__dict__.setdefault(key, value)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [new.get(id(each), each) for each in group["params"]]


def divide_copy(options: Sharded, outline: nn.Module, module: nn.Module, device: torch.device) -> None:
    """Divide a copy of a module as the module is divided, and give it the module's values.

    ``outline`` is the copy, from `without_values` before the module was divided.
    """
    mesh = next(module.parameters()).device_mesh  # type: ignore[attr-defined]  # they are DTensors
    _divide(options, outline, mesh, lambda layer: give_memory(layer, device))
    for copied, tensor in zip(chain(*tensors_of(outline)), chain(*tensors_of(module)), strict=True):
        local_values(copied.detach()).copy_(local_values(tensor.detach()))


def _divide(options: Sharded, module: nn.Module, mesh: Any, fill: Callable[[nn.Module], object]) -> None:
    """Call ``fill`` for one layer after another, the whole module at last, and divide the layer's weights then."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # Gradients are averaged in the type of the weights, unless that is half.
    averaged_type = None if options.gathered_type is None else torch.float32
    policy = MixedPrecisionPolicy(
        options.gathered_type, averaged_type, None, cast_forward_inputs=options.gathered_type is not None
    )
    for layer in reversed(_layers_of(options, module)):  # a layer's parts come after it, and are divided before it
        fill(layer)
        fully_shard(layer, mesh=mesh, reshard_after_forward=options.reshard_after_forward, mp_policy=policy)
    fill(module)
    # PyTorch keeps what is outside of the layers gathered until the backward pass, in which it is needed first.
    outer: dict[str, Any] = {} if options.reshard_after_forward else {"reshard_after_forward": False}
    fully_shard(module, mesh=mesh, **outer)


def _mesh_shape(options: Sharded, membership: Membership) -> tuple[int, ...]:
    cluster = membership.cluster
    named = {"all": cluster.world_size, "host": cluster.local_world_size}
    count = options.shard if isinstance(options.shard, int) else named[options.shard]
    if cluster.world_size % count:
        raise ValueError(
            f"shard={options.shard!r} divides the weights among {count} ranks, and {cluster.world_size} ranks are no "
            f"multiple of that: give a divisor of {cluster.world_size}"
        )
    return (count,) if count == cluster.world_size else (cluster.world_size // count, count)


def check_layers(options: Sharded, module: nn.Module, optimizers: Sequence[Optimizer]) -> list[nn.Module]:
    """Return the layers of a module that are gathered one at a time.

    Raise ValueError if there are none, or if the weights can't be divided, on one rank, too.
    """
    units = _layers_of(options, module)
    if lists := [each for each in units if type(each).forward is nn.Module.forward]:
        name = type(lists[0]).__name__
        raise ValueError(f"wrap has {name}, which has no forward(): give the class of the layers that it holds")
    if units:
        _check(module, units, optimizers)
        _check_half(options, module, units)
    else:
        asked = ", ".join(each.__name__ for each in options.wrap)
        candidates = Counter(type(each).__name__ for each in _layers(module)).most_common(_SHOWN)
        known = (
            ", ".join(f"{name} ({counted(count, 'time')})" for name, count in candidates) or "no layers with weights"
        )
        raise ValueError(f"wrap={asked}: the model holds no module of that class. It holds {known}")
    return units


def _layers_of(options: Sharded, module: nn.Module) -> list[nn.Module]:
    return [each for each in module.modules() if isinstance(each, tuple(options.wrap)) and each is not module]


def _check(module: nn.Module, units: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Raise ValueError for weights that can't be divided, or whose meaning would be lost."""
    of_units = {id(each) for each in units}
    names = [name for name, each in module.named_modules() if id(each) in of_units]
    first: dict[int, tuple[str, str]] = {}
    types: dict[str, tuple[str, torch.dtype]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        if is_lazy(weight):
            raise ValueError(f"{name} has no shape yet (a lazy layer): call the model once before the Trainer is made")
        if weight.ndim == 0 or not weight.is_contiguous():
            raise ValueError(
                f"{name} is {'a scalar' if weight.ndim == 0 else 'not contiguous'}, and fully_shard divides no such "
                f"weight: make it {'a tensor of shape (1,)' if weight.ndim == 0 else 'contiguous'}"
            )
        owner = max((each for each in names if name.startswith(f"{each}.")), key=len, default="")
        if weight.requires_grad and types.setdefault(owner, (name, weight.dtype))[1] != weight.dtype:
            raise ValueError(
                f"{name} is in {weight.dtype}, {types[owner][0]} in {types[owner][1]}, and they are gathered together: "
                "give the trainable weights of a layer one type"
            )
        tied, other = first.setdefault(id(weight), (name, owner))
        if owner != other:
            raise ValueError(
                f"{name} is the same weight as {tied}, and wrap= puts them into different layers, each of which would "
                "be gathered alone: leave the class of such a layer out of wrap="
            )
    _check_replaceable(module, optimizers)


def _check_half(options: Sharded, module: nn.Module, units: Sequence[nn.Module]) -> None:
    """Raise ValueError for a layer that can't compute with weights in half precision."""
    of_units = {id(part) for unit in units for part in unit.modules()}
    for name, part in module.named_modules():
        if options.gather_as is not None and id(part) in of_units and hasattr(part, "running_mean"):
            raise ValueError(
                f"{name} ({type(part).__name__}) is in a layer of wrap=, and gather_as={options.gather_as!r} gathers "
                "its weights in that type, while its running statistics are float32: leave gather_as out"
            )


def _check_replaceable(module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Raise ValueError if something knows the module's parameters that will not know those in their place."""
    for name, weight in module.named_parameters():
        if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):  # noqa: SLF001
            raise ValueError(
                f"{name} has hooks on its gradient, and a model that is divided, or was made on the meta device, gets "
                "other parameters, without them: leave the hooks out, or register them after the Trainer is made"
            )
    for optimizer in optimizers:
        if optimizer.state:
            raise ValueError(
                f"the optimizer ({type(optimizer).__name__}) has a state already, of parameters that will be replaced: "
                "give one that has taken no step, and that makes its state in its first step, such as AdamW or SGD"
            )


def _layout(module: nn.Module) -> list[tuple[str, tuple[int, ...], str, bool, str]]:
    """Return what must be the same on all ranks before they exchange weights."""
    tensors = chain(module.named_parameters(), module.named_buffers())
    return [(name, tuple(each.shape), str(each.dtype), each.requires_grad, each.device.type) for name, each in tensors]


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
