"""A module as a part of a checkpoint: by plain names, checked before it is loaded, and without frozen weights if asked.

A weight is left out if it was frozen when training began, is frozen now, and has not changed a bit since. So a layer
that the script thaws is saved from then on. A module with nothing to train, such as an average of the weights or a
teacher, is saved whole: who loads its first weights is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from smddp.checkpoint.format.frozen import LeftOut, bit_sums, fingerprints
from smddp.checkpoint.format.plain_names import METADATA, in_names_of, plain_name, plain_state
from smddp.checkpoint.parts.optimizers import some
from smddp.display_text import as_size
from smddp.distributed import Ranks, has_shards

logger = logging.getLogger(__name__)


class ModulePart:
    """A module as a part of a checkpoint. Making it is collective if the module is divided among the ranks."""

    def __init__(self, name: str, module: nn.Module, ranks: Ranks, *, save_frozen: bool) -> None:
        self._name = name
        self.module = module
        self._ranks = ranks
        frozen = {} if save_frozen else _frozen(module)
        self._at_first = {name: LeftOut.of(frozen[name], each) for name, each in fingerprints(frozen, ranks).items()}
        self._first_sums = {name: bit_sums(each) for name, each in frozen.items()}
        if frozen and ranks.is_main:
            logger.info(
                "checkpoints leave out %d frozen weights of %s (%s): each start must load the same ones",
                len(frozen),
                name,
                as_size(sum(each.nbytes for each in frozen.values())),
            )
        self._left_out: dict[str, LeftOut] = {}
        self._own: dict[str, str] = {}

    @property
    def buffer_names(self) -> set[str]:
        """The plain names of the module's buffers."""
        return {plain_name(name) for name, _ in self.module.named_buffers()}

    def gather_state_dict(self, *, keep: bool) -> None:
        """Find the weights that the next ``state_dict`` leaves out; collective if the module is divided."""
        if not self._at_first:
            return
        frozen = {name: each for name, each in _frozen(self.module).items() if name in self._at_first}
        unchanged = {name for name, each in frozen.items() if self._is_as_at_first(name, each)}
        if has_shards(self.module):  # a weight is left out only if no rank's piece has changed
            unchanged = set.intersection(*self._ranks.gather(lambda: unchanged))
        self._left_out = {name: self._at_first[name] for name in frozen if keep and name in unchanged}

    def state_dict(self) -> Mapping[str, Any]:
        """Return the module's state with plain names, and a `LeftOut` for each weight that is not saved."""
        state = plain_state(self.module.state_dict())
        return _with(state, self._left_out) if self._left_out else state

    def read_left_out(self, state: Mapping[str, Any]) -> None:
        """Take the fingerprints of the weights that a saved state leaves out, for `check_state_dict`.

        Collective if the module is divided.
        """
        own = plain_state(self.module.state_dict())
        left_out = [name for name, value in plain_state(state).items() if isinstance(value, LeftOut)]
        weights = {name: own[name] for name in left_out if isinstance(own.get(name), Tensor)}
        self._own = fingerprints({name: each for name, each in weights.items() if not is_lazy(each)}, self._ranks)

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if a saved state is of another model. Call `read_left_out` before."""
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
        found = [f"{len(keys)} {problem}: {some(keys)}" for problem, keys in problems.items() if keys]
        if found:
            raise ValueError(f"it is of another model: {'; '.join(found)}")
        left_out = {key: value for key, value in saved.items() if isinstance(value, LeftOut)}
        if other := [key for key, value in left_out.items() if not self._has(present[key], key, value)]:
            raise ValueError(
                f"{len(other)} of {len(left_out)} frozen weights, which it leaves out, have other values here: "
                f"{some(other)}; load the same base model, in the same precision, before training begins"
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
        """Load a state that `check_state_dict` has accepted. The weights that it leaves out stay as they are."""
        own = self.module.state_dict()
        state = in_names_of(own, state)
        device = next((weight.device for weight in self.module.parameters()), None)
        for owner, buffer, key in _empty_buffers(self.module, state):
            setattr(owner, buffer, state[key].to(device, copy=True))
        left_out = {key: own[key] for key, value in state.items() if isinstance(value, LeftOut)}
        self.module.load_state_dict(_with(state, left_out) if left_out else state)

    def _is_as_at_first(self, name: str, weight: Tensor) -> bool:
        first, sums = self._at_first[name], self._first_sums[name]
        if LeftOut.of(weight, first.fingerprint) != first:  # another shape or type
            return False
        return torch.equal(bit_sums(weight).to(sums.device), sums)

    def _has(self, weight: Any, name: str, saved: LeftOut) -> bool:
        return isinstance(weight, Tensor) and name in self._own and LeftOut.of(weight, self._own[name]) == saved


def _frozen(module: nn.Module) -> dict[str, Tensor]:
    """Return the frozen weights, by plain name; none if nothing is trained."""
    state = plain_state(module.state_dict(keep_vars=True))
    weights = {name: value for name, value in state.items() if isinstance(value, nn.Parameter) and not is_lazy(value)}
    if not any(each.requires_grad for each in weights.values()):
        return {}
    return {name: each for name, each in weights.items() if not (each.requires_grad or each.is_meta)}


def _with(state: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state with some other values."""
    changed = type(state)({**state, **values})  # type: ignore[call-arg]
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
