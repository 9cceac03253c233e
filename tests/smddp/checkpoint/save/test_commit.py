"""Ranks that save together, here as threads: whatever fails where, all are told, none hangs, and nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from smddp.checkpoint import Retention, list_checkpoints
from smddp.checkpoint.restore.reader import read_newest
from smddp.checkpoint.save.attempt import Moment, SaveRequest
from smddp.checkpoint.save.commit import Committer, RankSaver, SaveFailedError
from smddp.checkpoint.save.save_group import ResultExchange, SaveGroup
from smddp.checkpoint.save.snapshot import WHOLE_BELOW, Snapshotter
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.owner_record import OWNER_NAME
from smddp.distributed import Ranks, is_communication_error
from smddp.errors import CheckpointError

RUN = "0123456789ab"
TENSORS = {f"layer.{index}": torch.full((WHOLE_BELOW // 4,), float(index)) for index in range(6)}


class Part:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class Job:
    """Several ranks in one process, with a store of keys as they meet in, and a directory each."""

    def __init__(self, directories: list[Path], *, writers: list[int] | None = None, seconds: float = 60.0) -> None:
        size = len(directories)
        self.keys = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.stores = [DirectoryStore(directory) for directory in directories]
        self.models = [Part(dict(TENSORS)) for _ in range(size)]
        self.loaders = [Part({"read": 10 + rank}) for rank in range(size)]
        self.ranks = []
        self.cancelled = [threading.Event() for _ in range(size)]
        self.saves = 0
        for rank in range(size):
            connection = TCPStore("localhost", self.keys.port)
            results = ResultExchange(connection, rank=rank, world_size=size, run=RUN, seconds=seconds)
            group = SaveGroup(
                ranks=Ranks(rank=rank, world_size=size),
                run=RUN,
                writers=list(range(size)) if writers is None else writers,
                results=results,
            )
            committer = Committer(self.stores[rank], keep=Retention(), hyperparameters={}, listener=None)
            snapshotter = Snapshotter(
                {"model": self.models[rank], "small": Part({"lr": 0.1})},
                {"loader": self.loaders[rank]},
                rank=rank,
                writers=group.writers,
            )
            self.ranks.append(RankSaver(self.stores[rank], group, committer, snapshotter))

    def save(self, step: int, *, missing: int | None = None) -> list[int | Exception | None]:
        """Let all ranks but a missing one save; give how it ended on each."""
        self.saves += 1

        def save(rank: int) -> int | Exception | None:
            if rank == missing:
                return None
            request = self.ranks[rank].request(self.saves, Moment(step=step))
            try:
                size = self.ranks[rank].save(request, self.cancelled[rank]).size
            except Exception as error:
                return error
            self.ranks[rank].prune(request)
            return size

        with ThreadPoolExecutor(len(self.ranks)) as pool:
            return list(pool.map(save, range(len(self.ranks))))


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


def assert_failed(outcomes: list[Any], *, on: int, text: str, environmental: bool) -> None:
    """All ranks have the same error; the one that has the cause is the only one to have it as its own."""
    assert all(isinstance(each, SaveFailedError) for each in outcomes), outcomes
    assert len({str(each) for each in outcomes}) == 1
    assert f"rank {on}: " in str(outcomes[0])
    assert text in str(outcomes[0])
    assert [is_communication_error(each) for each in outcomes] == [rank != on for rank in range(len(outcomes))]
    assert {each.environmental for each in outcomes} == {environmental}


def disk_fails(*_: object) -> None:
    raise OSError(28, "No space left on device")


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


@pytest.mark.parametrize("missing", [0, 2])
def test_a_rank_that_is_gone_is_waited_for_only_so_long(
    missing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smddp.checkpoint.save.save_group.FAREWELL_SECONDS", 0.3)
    patience = 0.3 if missing == 0 else 1.0
    written, write = threading.Barrier(2), RankSaver._write

    def write_with_the_other(saver: RankSaver, request: SaveRequest) -> Any:
        try:
            return write(saver, request)
        finally:
            written.wait(60)  # how long the disk takes is nobody's absence

    monkeypatch.setattr(RankSaver, "_write", write_with_the_other)
    job = Job([tmp_path] * 3, seconds=patience)
    outcomes = job.save(5, missing=missing)
    expected = "rank 2 did not report within 1 s" if missing == 2 else "rank 0 did not say how it went within 0.6 s"
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
