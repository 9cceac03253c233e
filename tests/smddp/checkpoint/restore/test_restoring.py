"""What a run gets back from a checkpoint that was saved in other circumstances: an older format, other parts."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smddp.checkpoint import Checkpointer, list_checkpoints
from smddp.errors import CheckpointError

FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "format-1"


@pytest.fixture(autouse=True)
def keeps_the_random_state() -> Iterator[None]:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


class Holder:
    def __init__(self, state: object = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: object) -> None:
        self.state = state


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory with a checkpoint that the first smddp saved."""
    return Path(shutil.copytree(FORMAT_1 / "checkpoints", tmp_path / "old"))


def test_a_run_goes_on_from_a_checkpoint_of_format_1_and_saves_in_the_newest(old: Path) -> None:
    expected = json.loads((FORMAT_1 / "expected.json").read_text())
    parts = {"model": Holder(), "optimizer": Holder(), "sampler": Holder()}
    with Checkpointer(old, parts) as checkpointer:
        manifest = checkpointer.load()
        assert manifest is not None
        assert manifest.format == 1
        model = parts["model"].state
        assert isinstance(model, dict)
        assert model["0.weight"].tolist() == expected["model"]["0.weight"]
        checkpointer.save(manifest.step)  # in the place of the old one
    (info,) = list_checkpoints(old)
    assert info.valid
    assert info.manifest is not None
    assert info.manifest.format == 2
    assert sorted(each.name for each in Path(info.path).iterdir()) == [info.manifest.directory, "manifest.json"]


def test_the_random_numbers_of_format_1_go_on(old: Path) -> None:
    drawn = []
    for _ in range(2):
        Checkpointer(old, {}).load()
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]


def test_a_part_that_becomes_each_ranks_own_begins_as_it_was_for_all(old: Path, tmp_path: Path) -> None:
    sampler = Holder()
    Checkpointer(old, {"model": Holder()}, per_rank={"sampler": sampler}).load()
    assert isinstance(sampler.state, dict)

    with Checkpointer(tmp_path / "new", {"loader": Holder({"read": 7})}) as checkpointer:
        checkpointer.save(1)
    loader = Holder()
    Checkpointer(tmp_path / "new", {}, per_rank={"loader": loader}).load()
    assert loader.state == {"read": 7}


def test_each_ranks_own_state_comes_back(tmp_path: Path) -> None:
    loader = Holder({"read": 7, "buffer": torch.arange(3), "order": np.arange(4)})
    with Checkpointer(tmp_path, {}, per_rank={"loader": loader}) as checkpointer:
        checkpointer.save(1)
        loader.state["buffer"].zero_()
        loader.state["order"][:] = 0
    restored = Holder()
    Checkpointer(tmp_path, {}, per_rank={"loader": restored}).load()
    assert isinstance(restored.state, dict)
    assert restored.state["read"] == 7
    assert restored.state["buffer"].tolist() == [0, 1, 2]
    assert restored.state["order"].tolist() == [0, 1, 2, 3]


def test_a_part_of_each_rank_that_the_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, {"model": Holder(1)}, per_rank={"loader": Holder(2)}) as checkpointer:
        checkpointer.save(1)
    with pytest.raises(CheckpointError, match="has no scaler, only loader, model"):
        Checkpointer(tmp_path, {"model": Holder()}, per_rank={"scaler": Holder()}).load()


def test_a_part_is_either_the_same_on_all_ranks_or_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model is both in state and in per_rank"):
        Checkpointer(tmp_path, {"model": Holder()}, per_rank={"model": Holder()})


def test_a_module_whose_extra_state_is_no_tensor_is_compared_by_its_names(tmp_path: Path) -> None:
    class Counting(torch.nn.Linear):
        count = 0

        def get_extra_state(self) -> dict[str, int]:
            return {"count": self.count}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    model = Counting(2, 2)
    model.count = 5
    with Checkpointer(tmp_path, {"model": model}) as checkpointer:
        checkpointer.save(1)
    other = Counting(2, 2)
    Checkpointer(tmp_path, {"model": other}).load()
    assert other.count == 5
    assert torch.equal(other.weight, model.weight)
