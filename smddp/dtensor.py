"""The values of a DTensor, a tensor whose values are divided among ranks, and of a plain one alike.

A DTensor is recognized by its attributes: importing its module takes a second.
"""

from __future__ import annotations

from torch import Tensor


def is_dtensor(value: object) -> bool:
    """Return whether a value is a DTensor, whose values are divided among ranks."""
    return isinstance(value, Tensor) and hasattr(value, "placements") and hasattr(value, "device_mesh")


def local_values(tensor: Tensor) -> Tensor:
    """Return the values that this rank has: of a DTensor those of its piece, of another tensor all. No copy."""
    return tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def whole_values(tensor: Tensor) -> Tensor:
    """Return all values of a tensor, gathered from the ranks if it is a DTensor; then collective."""
    return tensor.full_tensor() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
