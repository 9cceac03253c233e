"""What makes the files of several ranks a checkpoint, and what prevents it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from smddp.checkpoint import list_checkpoints
from smddp.checkpoint.restore.reader import read_newest
from smddp.checkpoint.save.rank_saver import SaveFailedError
from smddp.checkpoint.stores.directory import DirectoryStore
from tests.smddp.checkpoint.save.saving_ranks import RUN, TENSORS, Job, assert_failed, disk_fails


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job([tmp_path] * 3)


def test_what_three_ranks_wrote_is_one_checkpoint(job: Job, tmp_path: Path) -> None:
    sizes = job.save(5)
    loaded = read_newest(job.stores[0])
    assert loaded is not None
    assert sizes == [loaded.manifest.size] * 3
    assert loaded.manifest.world_size == 3
    assert sorted(loaded.manifest.files) == [
        "digests.json",
        *(f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)),
        "ranks.safetensors",
        "state.json",
    ]
    model = loaded.unflatten("model")
    assert model.keys() == TENSORS.keys()
    assert all(torch.equal(model[name], TENSORS[name]) for name in TENSORS)
    assert [each["loader"] for each in loaded.unflatten("ranks")] == [{"read": 10}, {"read": 11}, {"read": 12}]
    assert loaded.unflatten("small") == {"lr": 0.1}


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("layer.0"),
        lambda state: state.update(another=torch.ones(1)),
        lambda state: state.update({"layer.0": torch.ones(3)}),
    ],
)
@pytest.mark.slow
def test_ranks_with_different_states_are_refused(change: Callable[[Any], object], job: Job) -> None:
    change(job.models[1].state)
    assert_failed(
        job.save(5), on=0, text="the state of rank 1 has not the same tensors as that of rank 0", environmental=False
    )


def test_writers_that_do_not_see_the_same_directory_are_refused(tmp_path: Path) -> None:
    job = Job([tmp_path / "a", tmp_path / "b"])
    for outcome in job.save(5):
        assert isinstance(outcome, SaveFailedError)
        assert "rank 1 wrote model-00002-of-00002.safetensors" in str(outcome)
        assert "rank 0 finds none in" in str(outcome)
    assert list_checkpoints(tmp_path / "a") == []


def test_the_files_of_a_checkpoint_that_was_replaced_are_removed(job: Job, tmp_path: Path) -> None:
    for _ in range(2):
        job.save(5)
    (path,) = tmp_path.glob("step-*")
    assert sorted(each.name for each in path.iterdir()) == [f"{RUN}-0002", "manifest.json"]


def test_when_replacing_fails_the_one_that_stands_stays_as_it_is(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.save(5)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(job.stores[0], "commit", lambda *_, **__: disk_fails())
    assert_failed(job.save(5), on=0, text="No space left", environmental=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("writer", [0, 1, 2])
def test_files_that_were_removed_while_they_were_written_are_no_checkpoint(
    writer: int, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.save(5)
    commit, name = DirectoryStore.write, f"model-{writer + 1:05}-of-00003.safetensors"

    def write(store: DirectoryStore, step: int, directory: str, written: str, content: Any) -> None:
        commit(store, step, directory, written, content)
        if written == "digests.json":  # the last
            (tmp_path / f"step-{step:012}" / directory / name).unlink()

    monkeypatch.setattr(DirectoryStore, "write", write)
    for outcome in job.save(6):
        assert isinstance(outcome, SaveFailedError)
        assert f"{name} is missing" in str(outcome)
    assert [info.step for info in list_checkpoints(tmp_path) if info.valid] == [5]
