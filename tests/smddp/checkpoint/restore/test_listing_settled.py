"""Whoever looks for a checkpoint while a training removes the old ones finds one: there always is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from smddp.checkpoint import Checkpointer, export, find_best, load_weights
from smddp.checkpoint.restore.reader import read_newest
from smddp.checkpoint.run_state import capture_random_state
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.errors import CheckpointError
from tests.smddp.checkpoint.by_hand import write_checkpoint

STATE: dict[str, Any] = {"model": nn.Linear(2, 1).state_dict(), "ranks": [{"rng": capture_random_state()}]}


def save(store: DirectoryStore, step: int) -> None:
    write_checkpoint(store, step, STATE, metrics={"loss": 1.0 / step})


class Training:
    """Saves a checkpoint, and removes all others, each time that somebody has listed them, so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Path, times: int) -> None:
        self.store = DirectoryStore(place)
        self.step, self.left = 1, times
        save(self.store, 1)
        list_steps = DirectoryStore.steps

        def steps(store: DirectoryStore) -> list[int]:
            found = list_steps(store)
            if self.left:
                self.left -= 1
                self.step += 1
                save(self.store, self.step)
                for step in found:
                    store.remove(step)
            return found

        monkeypatch.setattr(DirectoryStore, "steps", steps)


def load(place: Path) -> Any:
    with Checkpointer(place, {"model": nn.Linear(2, 1)}) as checkpointer:
        manifest = checkpointer.load()
        return manifest and manifest.step


LOOKS: list[Callable[[Path], Any]] = [
    load,
    lambda place: export(place, place.parent / "out.pt").step,
    lambda place: find_best(place, "loss", "min").step,
    lambda place: int(load_weights(nn.Linear(2, 1), place).source[-12:]),
]


@pytest.mark.parametrize("look", LOOKS, ids=["load", "export", "best", "load_weights"])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_what_came_after_the_list_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[Path], Any], times: int
) -> None:
    training = Training(monkeypatch, tmp_path / "run", times)
    assert look(tmp_path / "run") == training.step


@pytest.mark.parametrize("look", LOOKS, ids=["load", "export", "best", "load_weights"])
def test_what_is_removed_faster_than_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[Path], Any]
) -> None:
    Training(monkeypatch, tmp_path / "run", 1000)
    with pytest.raises(CheckpointError, match="were removed while they were looked at"):
        look(tmp_path / "run")


def test_a_save_that_ends_while_one_looks_is_found(tmp_path: Path) -> None:
    """The newest has no manifest yet when it is looked at; then it has, and the others are removed."""
    store = DirectoryStore(tmp_path)
    save(store, 1)

    class Ending(DirectoryStore):
        def read_manifest(self, step: int) -> bytes | None:
            if step == 2 and store.steps() == [1, 2]:
                save(store, 2)
                store.remove(1)
                return None
            return super().read_manifest(step)

    store.write(2, "0123456789ab-0001", "state.json", [memoryview(b"{}")])
    loaded = read_newest(Ending(tmp_path))
    assert loaded is not None
    assert loaded.manifest.step == 2


def test_a_list_that_missed_what_was_renewed_while_it_was_read_is_read_again(tmp_path: Path) -> None:
    class Missing(DirectoryStore):
        lists = 0

        def steps(self) -> list[int]:
            self.lists += 1
            return super().steps() if self.lists > 1 else []

    save(DirectoryStore(tmp_path), 1)
    loaded = read_newest(Missing(tmp_path))
    assert loaded is not None
    assert torch.equal(loaded.unflatten("model")["weight"], STATE["model"]["weight"])


def test_what_somebody_removed_is_not_told_to_be_no_checkpoint(tmp_path: Path) -> None:
    class Removing(DirectoryStore):
        def read_manifest(self, step: int) -> bytes | None:
            self.remove_now(step)
            return None

        def remove_now(self, step: int) -> None:
            DirectoryStore(tmp_path).remove(step)

    save(DirectoryStore(tmp_path), 1)
    with pytest.raises(CheckpointError, match=r"\(step-000000000001\) were removed"):
        read_newest(Removing(tmp_path))
