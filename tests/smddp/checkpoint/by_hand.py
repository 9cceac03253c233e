"""Checkpoints of format 2 written by hand, as the documentation says: what the reader is tested with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import torch
import xxhash

from smddp.checkpoint.format.manifest import FileDigests, FileRecord, Manifest, digests_to_json, file_names
from smddp.checkpoint.format.state_tree import flatten
from smddp.checkpoint.format.tensors import DTYPES, Layout, bytes_of
from smddp.checkpoint.stores import Store

RUN = "5f3a9c01d2e4"


def write_checkpoint(
    store: Store,
    step: int,
    state: Mapping[str, Any],
    *,
    writers: int = 1,
    attempt: int = 1,
    pieces: bool = False,
    **fields: Any,
) -> Manifest:
    """Write and commit a checkpoint.

    Args:
        store: where to.
        step: its step.
        state: what each part's state_dict() gave.
        writers: how many files the tensors of a part are dealt out to, if it has so many.
        attempt: the number in the name of its directory.
        pieces: whether each tensor is in two pieces, as those of a sharded model on two ranks are.
        fields: of the manifest.
    """
    directory = f"{RUN}-{attempt:04}"
    skeletons: dict[str, Any] = {}
    known: dict[str, FileDigests] = {}
    records: dict[str, FileRecord] = {}

    def write(name: str, content: list[memoryview], digest: str) -> None:
        store.write(step, directory, name, content)
        records[name] = FileRecord(size=sum(piece.nbytes for piece in content), xxh3_128=digest)

    for part, value in state.items():
        skeletons[part], tensors = flatten(value, path=part)
        if pieces:
            tensors = {piece: each for name in tensors for piece, each in halves(tensors[name], name).items()}
            skeletons[part] = in_pieces(skeletons[part], tensors)
        count = min(writers, len(tensors))
        for index, name in enumerate(file_names(part, count) if count else []):
            own = dict(list(tensors.items())[index::count])
            layout = Layout.of(own)
            values = {entry.name: bytes_of(plain(own[entry.name])) for entry in layout.entries}
            known[name] = FileDigests(
                header=xxhash.xxh3_128_hexdigest(layout.header),
                tensors={name: xxhash.xxh3_128_hexdigest(value) for name, value in values.items()},
            )
            write(name, [memoryview(layout.header), *values.values()], known[name].xxh3_128)
    for name, data in ("state.json", json.dumps(skeletons).encode()), ("digests.json", digests_to_json(known)):
        write(name, [memoryview(data)], xxhash.xxh3_128_hexdigest(data))
    described: dict[str, Any] = {
        "epoch": 0,
        "position": None,
        "world_size": 1,
        "saved_at": datetime(2026, 11, 21, tzinfo=timezone.utc),
        "smddp_version": "0.1.0",
        "torch_version": str(torch.__version__),
        "metrics": {},
        "hyperparameters": {},
    }
    manifest = Manifest(run=RUN, directory=directory, step=step, files=records, **{**described, **fields})
    store.commit(step, directory, manifest.to_json(), replacing=store.read_manifest(step))
    return manifest


def halves(tensor: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
    """Return the two halves of a tensor along its first dimension, or the tensor itself if it has no such."""
    if tensor.dim() == 0 or len(tensor) < 2:
        return {name: tensor}
    return {f"{name}@{number}": half for number, half in enumerate(tensor.chunk(2))}


def in_pieces(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return a skeleton whose tensors are described by their halves, where they have some."""
    if isinstance(skeleton, list):
        return [in_pieces(each, tensors) for each in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    name = skeleton.get("name")
    if skeleton.get("$") != "tensor" or f"{name}@0" not in tensors:
        return {key: in_pieces(value, tensors) for key, value in skeleton.items()}
    first, second = tensors[f"{name}@0"], tensors[f"{name}@1"]
    rest = [0] * (first.dim() - 1)
    return {
        "$": "sharded",
        "name": name,
        "dtype": DTYPES[first.dtype],
        "shape": [len(first) + len(second), *first.shape[1:]],
        "pieces": [
            [f"{name}@0", [0, *rest], list(first.shape)],
            [f"{name}@1", [len(first), *rest], list(second.shape)],
        ],
    }


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor's values as a file has them."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()
