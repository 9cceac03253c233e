"""Every bit of a state, in a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash
from torch import Tensor

from smddp.dtensor import whole_values


def digest(*states: Any) -> str:
    """Return a digest of nested states, the same however their tensors are divided. Collective if one is a DTensor."""
    found = xxhash.xxh3_128()
    for piece in _pieces(states):
        found.update(piece)
    return found.hexdigest()


def _pieces(state: Any) -> Iterator[bytes]:
    if isinstance(state, Tensor):
        state = whole_values(state.detach()).numpy()
    if isinstance(state, np.ndarray):
        yield f"{state.dtype}{state.shape}".encode()
        yield state.tobytes()
    elif isinstance(state, dict):
        for key, value in state.items():
            yield repr(key).encode()
            yield from _pieces(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from _pieces(value)
    else:
        yield repr(state).encode()
