"""Values for modules on the meta device, where a tensor has a shape and no values.

A model that is larger than a host's memory is made there. Its values are drawn in the memory of the rank's device, one
layer after another, by what the layer's constructor calls: ``reset_parameters``, and then ``_init_weights(layer)`` of
the model around it, if they are there. What would get other values than the constructor gives is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from smddp.process.terminal_text import counted

_RESETS = ("reset_parameters", "_reset_parameters")
"""The names of the method that draws a layer's values; the second one is torch's own in attention layers."""


def has_no_values(module: nn.Module) -> bool:
    """Return whether some tensors of a module are on the meta device."""
    return any(each.is_meta for each in _tensors(module).values())


def without_values(module: nn.Module) -> nn.Module:
    """Return a copy of a module on the meta device. Its weights are frozen."""
    memo: dict[int, Any] = {}
    for weight in module.parameters():
        memo[id(weight)] = nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


def give_memory(module: nn.Module, device: torch.device) -> dict[str, Tensor]:
    """Replace a module's tensors on the meta device by ones on a device, with any values, and return these by name.

    Tied weights stay tied.
    """
    new: dict[int, tuple[str, Tensor, Tensor]] = {}
    for named in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        for name, tensor in [(name, tensor) for name, tensor in named if tensor.is_meta]:
            values: Tensor = torch.empty_like(tensor, device=device)
            if isinstance(tensor, nn.Parameter):
                values = nn.Parameter(values, requires_grad=tensor.requires_grad)
            _, _, values = new.setdefault(id(tensor), (name, tensor, values))
            owner, _, own_name = name.rpartition(".")
            setattr(module.get_submodule(owner), own_name, values)
    return {name: values for name, _, values in new.values()}


@torch.no_grad()
def draw_values(layer: nn.Module, model: nn.Module, device: torch.device) -> None:
    """Draw the values of a layer of the model, for its tensors that are on the meta device; change no other tensor.

    Raise ValueError if a tensor gets no values, if the constructor has written to it in another way too, or if another
    tensor would be changed.
    """
    prefix = next(f"{name}." if name else "" for name, each in model.named_modules() if each is layer)
    others = {name: (each, _writes(each)) for name, each in _tensors(layer).items() if not each.is_meta}
    of_constructor = {name: _writes(each) for name, each in _tensors(layer).items()}
    drawn = give_memory(layer, device)
    if not drawn:
        return
    for tensor in drawn.values():
        _poison(tensor)
    before = {name: _writes(each) for name, each in drawn.items()}
    new = set(map(id, drawn.values()))
    parts = [each for each in reversed([*layer.modules()]) if new & set(map(id, _tensors(each).values()))]
    for part in parts:  # a part comes after its own parts, as in constructors
        for reset in filter(callable, (getattr(part, name, None) for name in _RESETS)):
            reset()
    for part, around in _initializers(parts, model):
        around._init_weights(part)  # type: ignore[operator]  # noqa: SLF001, the name is Hugging Face's
    for name, (tensor, writes) in others.items():
        weight = prefix + name
        if _writes(tensor) != writes:
            raise ValueError(
                f"a part of the model is on the meta device, and its reset_parameters() writes to {weight}, too, "
                "which has its values: let reset_parameters() of each layer write to its own weights alone"
            )
    for name, tensor in drawn.items():
        weight, writes = prefix + name, _writes(tensor) - before[name]
        if not writes and _is_poisoned(tensor):
            raise ValueError(
                f"the model is on the meta device, and nothing gives {weight} values: write them in a method "
                f"reset_parameters() of {_owner(model, weight)}"
            )
        if of_constructor[name] > writes:
            raise ValueError(
                f"the model is on the meta device, and its constructor has written to {weight} "
                f"{counted(of_constructor[name], 'time')}, reset_parameters() and _init_weights() {writes}: its values "
                "would be others. Write them in those methods alone, or make the model on the CPU"
            )


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's parameters and buffers by name, each once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _writes(tensor: Tensor) -> int:
    """Return how often a tensor was written to in place, on the meta device, too."""
    return tensor._version  # noqa: SLF001


def _initializers(parts: Iterable[nn.Module], model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield the parts that have a module with a method ``_init_weights`` around them, and the innermost of these."""
    names = {id(each): name for name, each in model.named_modules()}
    for part in parts:
        words = names[id(part)].split(".") if names[id(part)] else []
        for count in range(len(words), -1, -1):
            around = model.get_submodule(".".join(words[:count]))
            if callable(getattr(around, "_init_weights", None)):
                yield part, around
                break


def _poison(tensor: Tensor) -> None:
    """Fill a tensor with values that no layer begins with."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(torch.nan)
    elif tensor.dtype is not torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def _is_poisoned(tensor: Tensor) -> bool:
    """Return whether a tensor may have the values of `_poison` still."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return bool(tensor.isnan().all())
    return tensor.dtype is torch.bool or bool((tensor == torch.iinfo(tensor.dtype).min).all())


def _owner(model: nn.Module, name: str) -> str:
    return type(model.get_submodule(name.rpartition(".")[0])).__name__
