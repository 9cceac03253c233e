"""A module as a part of a checkpoint: by plain names, checked before it is loaded, and without frozen weights if asked.

A weight is left out if it was frozen when training began, is frozen now, and has not changed a bit since. So a layer
that the script unfreezes and trains is saved from then on. A module with nothing to train, such as an average of the
weights or a teacher, is saved whole: its first values may be drawn anew at each start.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from smddp.checkpoint.format.frozen import LeftOut, fingerprints
from smddp.checkpoint.format.plain_names import METADATA, in_names_of, plain_name, plain_state
from smddp.display_text import as_size, describe, shown_names
from smddp.distributed import Ranks, has_shards
from smddp.distributed.replica_check import hash_of
from smddp.dtensor import is_dtensor, local_values

logger = logging.getLogger(__name__)


class ModulePart:
    """A module as a part of a checkpoint. Making it is collective for a sharded module.

    Each save compares a hash of each frozen weight's values on this rank with their first hash.
    """

    def __init__(self, name: str, module: nn.Module, ranks: Ranks, *, save_frozen: bool) -> None:
        self.module = module
        self._name, self._ranks, self._save_frozen = name, ranks, save_frozen
        self._is_in_pieces = has_pieces(module)
        frozen = {} if save_frozen else _frozen(module)
        self._first = {} if save_frozen else self._described(frozen)
        self._first_hashes = {name: _hash(each) for name, each in frozen.items()}
        self._left_out: dict[str, LeftOut] | None = None
        self._present: dict[str, LeftOut] = {}

    @property
    def buffer_names(self) -> set[str]:
        """The plain names of the module's buffers."""
        return {plain_name(name) for name, _ in self.module.named_buffers()}

    def gather_state_dict(self, *, keep: bool) -> None:
        """Find the weights that the next ``state_dict`` leaves out; collective for a sharded module.

        Raise ValueError if adapters are merged into the weights: a resume would add them a second time.
        """
        if merged := _merged_adapters(self.module):
            raise ValueError(
                f"the adapters of {shown_names(merged, most=3)} are merged into the weights of {self._name}, and a "
                "resume would add them a second time: call peft's unmerge_adapter() before a save, or train what "
                "merge_and_unload() returns"
            )
        if self._save_frozen or not (keep or self._is_in_pieces):
            return
        frozen = {name: each for name, each in _frozen(self.module).items() if name in self._first}

        def unchanged() -> set[str]:
            return {name for name, each in frozen.items() if self._is_unchanged(name, each)}

        # A sharded weight is unchanged if no rank's piece has changed.
        names = set.intersection(*self._ranks.gather(unchanged)) if self._is_in_pieces else unchanged()
        before, self._left_out = self._left_out, {name: self._first[name] for name in self._first if name in names}
        if self._ranks.is_main and keep:
            self._tell(before, frozen)

    def state_dict(self) -> Mapping[str, Any]:
        """Return the module's state with plain names, and a `LeftOut` for each weight that is not saved.

        Raise ValueError for a tensor whose elements share memory: the state could not be loaded.
        """
        state = plain_state(self.module.state_dict())
        if self._left_out:
            # A hook of the module may return other values under the same name, which a resume would find changed.
            own = {name: _address(each) for name, each in _frozen(self.module).items()}
            here = {name for name in self._left_out if name in state and _address(state[name]) == own.get(name)}
            state = _with(state, {name: self._left_out[name] for name in here})
        if expanded := [name for name, value in state.items() if isinstance(value, Tensor) and _is_expanded(value)]:
            raise ValueError(
                f"{shown_names(expanded)} of {self._name} is expanded: its elements share memory, into which PyTorch "
                "loads no state. Give it memory of its own before training begins, by .clone() of what expand() returns"
            )
        return state

    def describe_left_out(self, state: Any) -> None:
        """Take the fingerprints of the weights that a saved state leaves out, for `check_state_dict`.

        Collective for a sharded module.
        """
        saved = plain_state(state) if isinstance(state, Mapping) else {}
        names = {name for name, value in saved.items() if isinstance(value, LeftOut)}
        own = plain_state(self.module.state_dict()) if names else {}
        self._present = self._described({name: own[name] for name in own if name in names and has_bits(own[name])})

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if a saved state is of another model. Call `describe_left_out` before."""
        if not isinstance(state, Mapping):
            raise ValueError(f"it is {describe(state)}, and no state of a module")
        present, saved = plain_state(self.module.state_dict()), plain_state(state)
        misshapen = [
            f"{key} ({_shape(saved[key])} instead of {_shape(present[key])})"
            for key in present
            if key in saved and _shape(saved[key]) != _shape(present[key]) and not is_lazy(present[key])
        ]
        in_own_names = in_names_of(self.module.state_dict(), saved)
        empty = {plain_name(key) for _, _, key in _empty_buffers(self.module, in_own_names)}
        problems = {
            "missing": [key for key in present if key not in saved],
            "unexpected": [key for key in saved if key not in present and key not in empty],
            "misshapen": misshapen,
        }
        found = [f"{len(keys)} {problem}: {shown_names(keys)}" for problem, keys in problems.items() if keys]
        if found:
            raise ValueError(f"it is of another model: {'; '.join(found)}")
        left_out = {key: value for key, value in saved.items() if isinstance(value, LeftOut)}
        if other := [key for key, value in left_out.items() if self._present.get(key) != value]:
            remedy = "load the same base model, in the same precision, before training begins"
            if all(self._first.get(key) == left_out[key] for key in other):  # a rewind
                remedy = "this run has changed them since, and only a new start of the job loads them again"
            raise ValueError(
                f"{len(other)} of {len(left_out)} frozen weights, which it leaves out, have other values here: "
                f"{shown_names(other)}; {remedy}"
            )
        casts = sorted(
            {
                f"{_dtype(saved[key])} to {_dtype(present[key])}"
                for key in present
                if _dtype(saved[key]) != _dtype(present[key]) and not is_lazy(present[key])
            }
        )
        if casts and self._ranks.is_main:
            logger.warning("the checkpoint's values of %s are cast from %s", self._name, ", ".join(casts))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `check_state_dict` has accepted. The weights that it leaves out are not touched."""
        own = self.module.state_dict()
        state = in_names_of(own, state)
        device = next((weight.device for weight in self.module.parameters()), None)
        for owner, buffer, key in _empty_buffers(self.module, state):
            setattr(owner, buffer, state[key].to(device, copy=True))
        left_out = {key for key, value in state.items() if isinstance(value, LeftOut)}
        if not left_out:
            self.module.load_state_dict(state)
            return
        # Do not load present values, either: a layer that converts values of an older version would convert them.
        there = OrderedDict((key, value) for key, value in state.items() if key not in left_out)
        setattr(there, METADATA, getattr(state, METADATA, None))
        result = self.module.load_state_dict(there, strict=False)
        if result.unexpected_keys or set(result.missing_keys) - left_out:
            raise ValueError(f"it did not take {shown_names([*result.unexpected_keys, *result.missing_keys])}")
        if self._save_frozen and self._ranks.is_main:
            logger.info(
                "the checkpoint leaves out %d frozen weights of %s, and this run saves them: save_frozen is True",
                len(left_out),
                self._name,
            )

    def _described(self, weights: Mapping[str, Tensor]) -> dict[str, LeftOut]:
        found = fingerprints(weights, self._ranks, in_pieces=self._is_in_pieces)
        return {name: LeftOut.of(weights[name], each) for name, each in found.items()}

    def _is_unchanged(self, name: str, weight: Tensor) -> bool:
        first = self._first[name]
        is_alike = LeftOut.of(weight, first.fingerprint) == first
        return is_alike and _hash(weight) == self._first_hashes[name]

    def _tell(self, before: Mapping[str, LeftOut] | None, frozen: Mapping[str, Tensor]) -> None:
        """Log what checkpoints leave out, at the first save and when it becomes less."""
        now = self._left_out or {}
        is_trained = any(weight.requires_grad for weight in self.module.parameters())
        if before is None and is_trained and not self._first:
            logger.info("save_frozen=False leaves nothing out: no weight of %s is frozen", self._name)
        if before is None and now:
            size = sum({id(frozen[name]): frozen[name].nbytes for name in now}.values())
            logger.info(
                "checkpoints leave out %d frozen weights of %s (%s): each start must load the same ones",
                len(now),
                self._name,
                as_size(size),
            )
        if changed := [name for name in (self._first if before is None else before) if name not in now]:
            logger.info(
                "%d frozen weights of %s have changed or are trained, and are saved from now on: %s",
                len(changed),
                self._name,
                shown_names(changed),
            )


def has_pieces(module: nn.Module) -> bool:
    """Return whether a module is sharded: its weights or buffers are DTensors."""
    # The weights are no DTensors while a forward pass has them gathered.
    return has_shards(module) or any(map(is_dtensor, chain(module.parameters(), module.buffers())))


def _is_expanded(value: Tensor) -> bool:
    if is_dtensor(value) or value.layout is not torch.strided or value.is_contiguous():
        return False
    return any(step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True))


def _hash(weight: Tensor) -> tuple[int, int]:
    return hash_of([local_values(weight.detach())])


def _frozen(module: nn.Module) -> dict[str, Tensor]:
    """Return the frozen weights, by plain name; none if nothing is trained."""
    weights = {plain_name(name): each for name, each in module.named_parameters(remove_duplicate=False)}
    if not any(each.requires_grad for each in weights.values()):
        return {}
    return {name: each for name, each in weights.items() if has_bits(each) and not each.requires_grad}


def _address(value: Any) -> tuple[int, torch.Size] | None:
    return (local_values(value).data_ptr(), value.shape) if isinstance(value, Tensor) else None


def has_bits(weight: Any) -> bool:
    """Return whether a weight has bits to hash. Others can't be saved either, and the save reports them."""
    if not isinstance(weight, Tensor) or is_lazy(weight) or weight.is_meta or weight.is_quantized:
        return False
    return weight.layout == torch.strided


def _with(state: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state with some other values."""
    changed = OrderedDict(state)
    changed.update(values)
    if hasattr(state, METADATA):
        setattr(changed, METADATA, getattr(state, METADATA))
    return changed


def _shape(value: Any) -> list[int] | None:
    is_known = isinstance(value, LeftOut) or (isinstance(value, Tensor) and not is_lazy(value))
    return list(value.shape) if is_known else None


def _dtype(value: Any) -> str:
    if isinstance(value, LeftOut):
        return value.dtype
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__


def _empty_buffers(module: nn.Module, state: Mapping[str, Any]) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield the buffers that are None here but present in the state, because a forward pass assigns them.

    Each item is the buffer's module, its name in that module, and its key in the state.
    """
    for prefix, owner in module.named_modules():
        for name, buffer in owner._buffers.items():  # noqa: SLF001
            key = f"{prefix}.{name}" if prefix else name
            if buffer is None and isinstance(state.get(key), Tensor):
                yield owner, name, key


def _merged_adapters(module: nn.Module) -> list[str]:
    """Return the layers that have added their adapters to their weights, as layers of peft and loralib tell it."""
    return [
        name
        for name, layer in module.named_modules()
        if getattr(layer, "merged", False) is True
        and (
            callable(getattr(layer, "unmerge", None)) or any("lora" in weight for weight, _ in layer.named_parameters())
        )
    ]
