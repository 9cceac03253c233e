"""No damage is loaded in silence: the short form of `tests.torture.damage`, and damage that no chance would find."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from smddp.checkpoint.restore.listing import inspect
from smddp.checkpoint.restore.reader import read_newest
from smddp.checkpoint.stores import open_store
from tests.smddp.checkpoint.by_hand import RUN, write_checkpoint
from tests.torture.damage import damage_at_random


@pytest.mark.slow
def test_falls_back_from_any_damage(tmp_path: Path) -> None:
    outcome = damage_at_random(count=400, seed=20261121, directory=tmp_path)
    assert outcome.done == 400
    assert not outcome.failures


@pytest.mark.slow
def test_every_single_bit_of_a_checkpoint_counts(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    write_checkpoint(store, 1, {"model": {"weight": torch.ones(2)}})
    for path in sorted(path for path in Path(store.path(1)).rglob("*") if path.is_file()):
        whole = path.read_bytes()
        for bit in range(8 * len(whole)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            assert inspect(store, 1).status == "damaged", f"bit {bit} of {path.name}"
        path.write_bytes(whole)
    assert inspect(store, 1).valid


@pytest.mark.parametrize("name", ["state.json", "digests.json", "model.safetensors", "ema.safetensors"])
def test_files_of_two_checkpoints_are_never_mixed(tmp_path: Path, name: str) -> None:
    store = open_store(tmp_path)
    for step in (1, 2):
        write_checkpoint(
            store, step, {part: {"weight": torch.full((4,), step)} for part in ("model", "ema")} | {"n": step}
        )
    older, newer = (Path(store.path(step)) / f"{RUN}-0001" / name for step in (1, 2))
    newer.write_bytes(older.read_bytes())
    loaded = read_newest(store)
    assert loaded is not None
    assert loaded.manifest.step == 1


def test_a_manifest_that_arrived_before_its_files_is_passed_over(tmp_path: Path) -> None:
    """What a foreign copy of the directory can look like while it is under way."""
    store = open_store(tmp_path)
    for step in (1, 2):
        write_checkpoint(store, step, {"model": {"weight": torch.full((4,), step)}})
    for path in (Path(store.path(2)) / f"{RUN}-0001").iterdir():
        path.rename(path.with_name(path.name + ".sagemaker-uploading"))
    assert inspect(store, 2).reason == "model.safetensors is missing"
    loaded = read_newest(store)
    assert loaded is not None
    assert loaded.manifest.step == 1
