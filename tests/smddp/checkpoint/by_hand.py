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
from smddp.checkpoint.format.tensors import Layout, bytes_of
from smddp.checkpoint.stores import Store

RUN = "5f3a9c01d2e4"


def write_checkpoint(
    store: Store, step: int, state: Mapping[str, Any], *, writers: int = 1, attempt: int = 1, **fields: Any
) -> Manifest:
    """Write and commit a checkpoint.

    Args:
        store: where to.
        step: its step.
        state: what each part's state_dict() gave.
        writers: how many files the tensors of a part are dealt out to, if it has so many.
        attempt: the number in the name of its directory.
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


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor's values as a file has them."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()
