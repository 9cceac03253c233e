"""The values of a DTensor, a tensor whose values are divided among ranks, and of a plain one alike.

A DTensor is recognized by its attributes: importing its module takes a second.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import torch
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


@lru_cache(maxsize=1024)
def first_slice(mesh: Any) -> tuple[int, ...]:
    """Return the ranks of a mesh, in its order; of a slice, such as ``mesh["data"]``, those of the first such slice.

    All slices divide a tensor alike, and their ranks have the same pieces. Each rank knows its own slice alone.
    """
    whole = _root(mesh).mesh
    place_of = dict(zip(whole.flatten().tolist(), product(*map(range, whole.shape)), strict=True))
    places = torch.tensor([place_of[rank] for rank in mesh.mesh.flatten().tolist()])
    places[:, (places == places[0]).all(dim=0)] = 0  # a slice lies at one index of the other dimensions
    return tuple(whole[tuple(places.T)].tolist())


def _root(mesh: Any) -> Any:
    """Return the mesh that a mesh is a slice of, or the mesh itself: PyTorch has no public name for it."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()  # noqa: SLF001
    from torch.distributed import device_mesh

    return device_mesh._mesh_resources.get_root_mesh(mesh) or mesh  # noqa: SLF001, before PyTorch 2.9
