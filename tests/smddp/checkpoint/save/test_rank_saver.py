"""Ranks that save together, here as threads: whatever fails where, all are told, none hangs, and nothing is left."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from smddp.checkpoint import list_checkpoints
from smddp.checkpoint.save.attempt import SaveRequest
from smddp.checkpoint.save.rank_saver import RankSaver
from smddp.checkpoint.stores.owner_record import OWNER_NAME
from smddp.distributed import is_communication_error
from smddp.errors import CheckpointError
from tests.smddp.checkpoint.save.saving_ranks import Job, assert_failed, disk_fails


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job([tmp_path] * 3)


def test_what_was_told_is_removed_again(job: Job) -> None:
    before = job.keys.num_keys()
    for step in (5, 6):
        job.save(step)
    assert job.keys.num_keys() == before


def test_ranks_that_do_not_write_need_not_see_the_directory(tmp_path: Path) -> None:
    job = Job([tmp_path / "shared", tmp_path / "shared", tmp_path / "elsewhere"], writers=[0, 1])
    assert len({*job.save(5)}) == 1
    (info,) = list_checkpoints(tmp_path / "shared")
    assert info.valid
    assert "model-00002-of-00002.safetensors" in info.manifest.files
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_when_one_ranks_disk_fails_all_are_told_and_nothing_is_left(
    failing: int, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.save(5)
    monkeypatch.setattr(job.stores[failing], "write", disk_fails)
    outcomes = job.save(6)
    assert_failed(outcomes, on=failing, text="No space left on device", environmental=True)
    assert isinstance(outcomes[failing].__cause__, OSError)
    monkeypatch.undo()
    assert sorted(each.name for each in tmp_path.iterdir()) == [OWNER_NAME, "step-000000000005"]
    assert len({*job.save(7)}) == 1
    assert [info.step for info in list_checkpoints(tmp_path) if info.valid] == [5, 7]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_when_one_rank_cannot_take_its_state_all_are_told(failing: int, job: Job, tmp_path: Path) -> None:
    job.models[failing].state = ValueError("out of reach")
    text = "could not take the state: ValueError: out of reach"
    assert_failed(job.save(5), on=failing, text=text, environmental=False)
    assert not list(tmp_path.glob("step-*"))


@pytest.mark.parametrize("operation", ["size", "commit", "read_manifest"])
def test_when_rank_0_cannot_finish_all_are_told(
    operation: str, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job.stores[0], operation, lambda *_, **__: disk_fails())
    assert_failed(job.save(5), on=0, text="No space left on device", environmental=True)


def test_when_several_fail_the_first_rank_is_told_of(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (1, 2):
        monkeypatch.setattr(job.stores[rank], "write", disk_fails)
    outcomes = job.save(5)
    assert len({str(each) for each in outcomes}) == 1
    assert "rank 1: " in str(outcomes[0])


@pytest.mark.parametrize("missing", [0, 2])
def test_a_rank_that_is_gone_is_waited_for_only_so_long(
    missing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smddp.checkpoint.save.save_group.FAREWELL_SECONDS", 0.3)
    patience = 0.3 if missing == 0 else 3.0
    written, write = threading.Barrier(2), RankSaver._write

    def write_with_the_other(saver: RankSaver, request: SaveRequest) -> Any:
        try:
            return write(saver, request)
        finally:
            written.wait(60)  # how long the disk takes is nobody's absence

    monkeypatch.setattr(RankSaver, "_write", write_with_the_other)
    job = Job([tmp_path] * 3, seconds=patience)
    outcomes = job.save(5, missing=missing)
    expected = "rank 2 did not report within 3 s" if missing == 2 else "rank 0 did not say how it went within 0.6 s"
    for rank in {0, 1, 2} - {missing}:
        assert isinstance(outcomes[rank], CheckpointError)
        assert expected in str(outcomes[rank])
    assert not any(info.valid for info in list_checkpoints(tmp_path))


def test_a_rank_whose_process_ends_waits_for_nobody(tmp_path: Path) -> None:
    job = Job([tmp_path] * 3)
    for rank in (0, 1):
        threading.Timer(0.2, job.cancelled[rank].set).start()
    outcomes = job.save(5, missing=2)
    assert all("given up, because the process ends" in str(each) for each in outcomes[:2])


def test_a_store_of_keys_that_vanishes_is_a_lost_contact(tmp_path: Path) -> None:
    job = Job([tmp_path] * 2)
    keys = [job.keys]
    job.keys = None
    threading.Timer(0.3, keys.clear).start()
    outcomes = job.save(5, missing=0)
    assert "lost contact with the other ranks" in str(outcomes[1])
    assert is_communication_error(outcomes[1])
