"""Recognise the parts of a run's state in foreign files, by their usual names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from smddp.errors import CheckpointError

_ALIASES = {
    "model_state_dict": "model",
    "state_dict": "model",
    "optimizer_state_dict": "optimizer",
    "scheduler_state_dict": "scheduler",
    "lr_scheduler": "scheduler",
    "lr_scheduler_state_dict": "scheduler",
}


def is_name_of(name: str, part: str) -> bool:
    """Return whether `name` is the part's name or an alias of it."""
    return _part_called(name) == part


def parts_of(state: Any, origin: str) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Divide a foreign state into parts by smddp's names, and the names of values that are no part, such as numbers.

    The state is a model's weights, or parts by name or alias. Raise CheckpointError, which names `origin`, if there is
    no part.
    """
    if isinstance(state, Mapping) and state and all(isinstance(name, str) for name in state):
        nested = [name for name, value in state.items() if isinstance(value, Mapping)]
        names = {**{_part_called(name): name for name in nested}, **{name: name for name in nested}}
        names = {part: name for part, name in names.items() if part == _part_called(part)}
        if "model" not in names and any(isinstance(value, torch.Tensor) for value in state.values()):
            return {"model": state}, []
        if names:
            return {part: state[name] for part, name in names.items()}, sorted(set(state) - set(names.values()))
    found = ", ".join(map(str, list(state)[:10])) if isinstance(state, Mapping) else f"a {type(state).__qualname__}"
    raise CheckpointError(
        f"{origin} holds {found or 'nothing'}, where a model's state_dict was expected, or a dict of such by part "
        '({"model": ..., "optimizer": ...})'
    )


def _part_called(name: str) -> str:
    return _ALIASES.get(name, name)
