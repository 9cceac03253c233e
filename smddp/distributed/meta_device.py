"""Values for modules on the meta device, where a tensor has a shape and no values.

A model that is larger than a host's memory is made there. Its values are drawn in the memory of the rank's device, one
layer after another, by what the layer's constructor calls: ``reset_parameters``, and then ``_init_weights(layer)`` of
the model around it, if they are there. What would get other values than the constructor gives is refused, as far as it
shows: PyTorch counts in-place writes to a tensor, but not those through ``.data``.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from smddp.accelerator import random_states, set_random_state
from smddp.display_text import counted

_RESETS = ("reset_parameters", "_reset_parameters")
"""The names of the method that draws a layer's values; the second one is torch's own in attention layers."""


_SHOWN = 5
_REMEDY = "change it in reset_parameters() or _init_weights() alone, or make the model on the CPU"
_AS_BUFFER = "register it by register_buffer, and write its values in reset_parameters()"


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
def draw_values(layer: nn.Module, model: nn.Module, device: torch.device, seed: int) -> None:
    """Draw the values of a layer of the model, for its tensors that are on the meta device; change no other tensor.

    They depend on the seed and on the names of the model's parts alone, not on what was drawn before. Raise ValueError
    if a tensor gets no values, if the constructor has written to it in another way too, or if another tensor would be
    changed.
    """
    names = {id(each): name for name, each in model.named_modules()}
    prefix = f"{names[id(layer)]}." if names[id(layer)] else ""
    others = {name: (each, _writes(each)) for name, each in _tensors(layer).items() if not each.is_meta}
    of_constructor = {name: _writes(each) for name, each in _tensors(layer).items()}
    drawn = give_memory(layer, device)
    if not drawn:
        return
    for tensor in drawn.values():
        _poison(tensor)
    poisoned = {name: _writes(each) for name, each in drawn.items()}
    new = set(map(id, drawn.values()))
    parts = [each for each in reversed([*layer.modules()]) if new & set(map(id, _tensors(each).values()))]
    with _keeping_random_numbers():
        for part in parts:  # a part comes after its own parts, as in constructors
            for reset in filter(callable, (getattr(part, name, None) for name in _RESETS)):
                _seed_from(f"{seed} {names[id(part)]}")
                reset()
        after_resets = {name: _writes(each) for name, each in drawn.items()}
        for part in parts:
            if (initialize := _initializer(names[id(part)], model)) is not None:
                _seed_from(f"{seed} {names[id(part)]} of the model")
                initialize(part)
    faults = [
        f"reset_parameters() of a layer around {prefix}{name} writes to it, and it has its values: let "
        "reset_parameters() write to a layer's own weights alone"
        for name, (tensor, writes) in others.items()
        if _writes(tensor) != writes
    ]
    now = _tensors(layer)
    for name, tensor in drawn.items():
        owner = model.get_submodule((prefix + name).rpartition(".")[0])
        if (assigned := now.get(name, tensor)) is not tensor:  # by `self.name = ...` in place of a write
            why = _why_not_assigned(assigned, tensor)
        else:
            resets, writes = after_resets[name] - poisoned[name], _writes(tensor) - poisoned[name]
            why = _why_not_drawn(tensor, owner, of_constructor=of_constructor[name], resets=resets, writes=writes)
            if why and of_constructor[name] == 0 and _is_copied_by_torch(prefix + name, model):
                why = ""
        if why:
            faults.append(f"{prefix}{name} ({type(owner).__name__}): {why}")
    faults += [
        f"{prefix}{name}: a tensor on the meta device, and no buffer: {_AS_BUFFER}" for name in _plain_tensors(layer)
    ]
    if faults:
        more = f"\nand {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise ValueError(
            "the model is on the meta device, and would begin with other values than on the CPU:\n"
            + "\n".join(faults[:_SHOWN])
            + more
        )


def _why_not_drawn(tensor: Tensor, owner: nn.Module, *, of_constructor: int, resets: int, writes: int) -> str:
    """Return why a tensor has other values than its constructor gives it; empty if it has not.

    The numbers count the writes to it: in the constructor, by ``reset_parameters``, and by that and ``_init_weights``.
    """
    if (not writes) if tensor.dtype is torch.bool else _is_poisoned(tensor):
        return (
            f"nothing gives it values, or not all: write them in a method reset_parameters() of {type(owner).__name__}"
        )
    if of_constructor == 0 and resets == writes and type(owner).__module__.startswith("torch.nn.modules."):
        # Constructors of torch's layers write to each weight.
        return f"the constructor has replaced or copied it: {_REMEDY}"
    if of_constructor > writes:
        return (
            f"the constructor has written to it {counted(of_constructor, 'time')}, reset_parameters() and "
            f"_init_weights() {writes}, such as by a loop over named_parameters(): {_REMEDY}"
        )
    return ""


def _why_not_assigned(value: object, tensor: Tensor) -> str:
    if not isinstance(value, Tensor) or (value.shape, value.dtype, value.device) != (
        tensor.shape,
        tensor.dtype,
        tensor.device,
    ):
        return f"reset_parameters() assigns something other than a tensor of its shape and type on {tensor.device}"
    return ""


def _plain_tensors(layer: nn.Module) -> list[str]:
    """Return the names of tensors on the meta device that are attributes, and neither weights nor buffers."""
    return [
        f"{name}.{key}" if name else key
        for name, part in layer.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, Tensor) and value.is_meta
    ]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's parameters and buffers by name, each once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _writes(tensor: Tensor) -> int:
    """Return how often a tensor was written to in place, on the meta device, too."""
    return tensor._version  # noqa: SLF001


@contextmanager
def _keeping_random_numbers() -> Iterator[None]:
    """Restore PyTorch's random generators, also those of devices, after the block."""
    own, of_devices = torch.get_rng_state(), random_states()
    try:
        yield
    finally:
        torch.set_rng_state(own)
        for kind, states in of_devices.items():
            for index, state in enumerate(states):
                set_random_state(state, kind, index)


def _seed_from(text: str) -> None:
    torch.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))


def _initializer(name: str, model: nn.Module) -> Callable[[nn.Module], object] | None:
    """Return the method ``_init_weights`` of the innermost module around a part that has it; Hugging Face's name."""
    words = name.split(".") if name else []
    for count in range(len(words), -1, -1):
        method: Any = getattr(model.get_submodule(".".join(words[:count])), "_init_weights", None)
        if callable(method):
            return method  # type: ignore[no-any-return]
    return None


def _is_copied_by_torch(name: str, model: nn.Module) -> bool:
    """Return whether a weight is in a layer that torch's constructors copy from another one, values included."""
    words = name.split(".")
    around = (model.get_submodule(".".join(words[:count])) for count in range(len(words)))
    return any(isinstance(each, nn.TransformerEncoder | nn.TransformerDecoder) for each in around)


def _poison(tensor: Tensor) -> None:
    """Fill a tensor with values that no layer begins with."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(torch.nan)
    elif tensor.dtype is not torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def _is_poisoned(tensor: Tensor) -> bool:
    """Return whether a tensor, not one of booleans, has a value of `_poison` still."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return bool(tensor.isnan().any())
    return bool((tensor == torch.iinfo(tensor.dtype).min).any())
