"""An agent copies a directory to S3, or does not: what is noticed, said and done about it."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.restore.listing import inspect
from smddp.checkpoint.stores import upload_monitor
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.s3 import S3Store
from smddp.checkpoint.stores.upload_monitor import UploadMonitor
from smddp.process.heartbeat import Heartbeat
from tests.smddp.checkpoint.by_hand import write_checkpoint
from tests.torture.fault_proxy import Fault, FaultProxy

pytestmark = pytest.mark.seaweedfs

STATE = {"model": {"weight": torch.arange(1_000_000.0)}}
LOGGER = "smddp.checkpoint.stores.upload_monitor"


@pytest.fixture
def source(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, source: DirectoryStore, bucket: str) -> Callable[[], list[str]]:
    """Give the log's lines of this test: a thread that an earlier one left behind may still speak."""
    caplog.set_level(logging.INFO, logger=LOGGER)

    def lines() -> list[str]:
        own = [each for each in caplog.records if str(source) in each.message or bucket in each.message]
        return [f"{each.levelname}: {each.message}" for each in own if each.name == LOGGER]

    return lines


@contextmanager
def watching(source: DirectoryStore, target: S3Store, **options: Any) -> Iterator[UploadMonitor]:
    arrival = UploadMonitor(source, target, **options)
    try:
        yield arrival
    finally:
        arrival.close()


def until(happened: Callable[[], object], seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


class Agent:
    """Copies a directory to S3 in its own time, files in any order, as SageMaker's does."""

    def __init__(self, source: DirectoryStore, s3: Any, bucket: str) -> None:
        self._source, self._s3, self._bucket = source, s3, bucket

    def copy(self, *names: str) -> None:
        for path in sorted(self._source.root.rglob("*")):
            if path.is_file() and (not names or path.name in names):
                key = f"runs/7/{path.relative_to(self._source.root)}"
                self._s3.put_object(Bucket=self._bucket, Key=key, Body=path.read_bytes())


@pytest.fixture
def agent(source: DirectoryStore, s3: Any, bucket: str) -> Agent:
    return Agent(source, s3, bucket)


def saved(source: DirectoryStore, arrival: UploadMonitor, step: int) -> Manifest:
    manifest = write_checkpoint(source, step, STATE, attempt=step)
    arrival.expect(step, manifest.to_json())
    return manifest


def test_what_arrives_in_time_is_not_spoken_of(
    source: DirectoryStore, store: S3Store, agent: Agent, said: Callable[[], list[str]]
) -> None:
    with watching(source, store, bound_seconds=30.0) as arrival:
        saved(source, arrival, 1)
        agent.copy()
        assert arrival.settle(20.0)
        assert arrival.settle(0.1)
    assert said() == []


def test_what_has_arrived_since_the_last_look_is_not_missed_at_the_end(
    source: DirectoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_monitor, "_LAST_LOOK_SECONDS", 60.0)
    target = DirectoryStore(tmp_path / "target")
    with watching(source, target) as arrival:  # which looks every ten seconds
        for step in (1, 2):
            saved(source, arrival, step)
            shutil.copytree(source.root, target.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target"))
        assert arrival.settle(20.0)  # asks for the newest alone
    assert not [record for record in caplog.records if record.name == LOGGER]
    assert arrival._thread is not None
    assert not arrival._thread.is_alive()


def test_what_does_not_arrive_is_said_once_aloud_and_that_it_came_after_all(
    source: DirectoryStore, store: S3Store, agent: Agent, said: Callable[[], list[str]]
) -> None:
    with watching(source, store, bound_seconds=0.3) as arrival:
        manifest = write_checkpoint(source, 1, STATE, attempt=1)
        agent.copy("manifest.json", "state.json")  # a manifest alone is not a checkpoint
        arrival.expect(1, manifest.to_json())
        until(lambda: any("2 of its 4 files" in line for line in said()) or len(said()) > 1)
        time.sleep(0.5)
        warnings = [line for line in said() if line.startswith("WARNING")]
        assert len(warnings) == 1
        assert f"{store.path(1)} has not arrived" in warnings[0]
        assert "s3:PutObject" in warnings[0]
        assert 'sync="upload"' in warnings[0]
        agent.copy()
        until(lambda: any(f"{store.path(1)} arrived after" in line for line in said()))
    assert len(said()) == 2


def test_each_late_checkpoint_is_said(source: DirectoryStore, store: S3Store, said: Callable[[], list[str]]) -> None:
    with watching(source, store, bound_seconds=0.3) as arrival:
        for step in (1, 2):
            saved(source, arrival, step)
        until(lambda: len(said()) >= 2)
        assert [any(store.path(step) in line for line in said()) for step in (1, 2)] == [True, True]
    assert [line.count("ends before it has seen them arrive") for line in said()] == [0, 0, 1, 1]


def test_what_is_not_needed_any_more_is_not_waited_for(
    source: DirectoryStore, store: S3Store, said: Callable[[], list[str]]
) -> None:
    with watching(source, store, bound_seconds=1.0) as arrival:
        manifest = write_checkpoint(source, 1, STATE, attempt=1)
        source.remove(1)
        arrival.expect(1, manifest.to_json())
        saved(source, arrival, 2)
        until(lambda: said())
    assert not any(store.path(1) in line for line in said())


def test_what_is_late_is_uploaded_if_that_is_wanted(
    source: DirectoryStore, store: S3Store, said: Callable[[], list[str]]
) -> None:
    with watching(source, store, bound_seconds=0.3, take_over=True) as arrival:
        saved(source, arrival, 1)
        until(lambda: any("arrived after" in line for line in said()))
    assert inspect(store, 1).status == "valid"
    assert "uploading it from here" in said()[0]


def test_an_agent_that_copies_at_the_same_time_does_no_harm(
    source: DirectoryStore, store: S3Store, agent: Agent
) -> None:
    with watching(source, store, bound_seconds=0.05, take_over=True) as arrival:
        stop = threading.Event()

        def copy() -> None:
            while not stop.is_set():
                agent.copy()

        copying = threading.Thread(target=copy)
        saved(source, arrival, 1)
        copying.start()
        until(lambda: arrival.settle(20.0))
        stop.set()
        copying.join()
    assert inspect(store, 1).status == "valid"


@pytest.mark.slow
def test_the_stop_uploads_the_newest_that_the_agent_left(
    source: DirectoryStore, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_monitor, "_MOST_PATIENCE", 2.0)
    with watching(source, store) as arrival:
        saved(source, arrival, 1)
        saved(source, arrival, 2)
        assert arrival.settle(60.0)
    assert inspect(store, 2).status == "valid"
    assert store.read_manifest(1) is None


def test_an_agent_that_is_quick_is_waited_for_briefly(
    source: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop, and the end of each job on a platform, waits for the newest checkpoint."""
    target = DirectoryStore(tmp_path / "target")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            shutil.copytree(source.root, target.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target"))

    with watching(source, target) as arrival:
        saved(source, arrival, 8)
        monkeypatch.setattr(upload_monitor, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
        assert arrival.settle(60.0)
    assert len(pauses) == 2
    assert sum(pauses) < 0.2


def test_the_looks_of_a_stop_grow_rarer(
    source: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = [0.0], []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    with watching(source, DirectoryStore(tmp_path / "target")) as arrival:
        saved(source, arrival, 8)
        monkeypatch.setattr(upload_monitor, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pause))
        assert arrival.settle(60.0)  # uploaded, after 15 s
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1.0
    assert len(pauses) < 25


def test_a_wait_for_the_agent_is_told(
    source: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(upload_monitor, "Heartbeat", partial(Heartbeat, every=0.02))
    monkeypatch.setattr(upload_monitor, "_MOST_PATIENCE", 0.5)
    target = DirectoryStore(tmp_path / "target")
    with watching(source, target) as arrival:
        saved(source, arrival, 8)
        assert arrival.settle(60.0)  # uploaded, after 0.5 s
    assert f"waiting until {target.path(8)} is in S3, at most 60 s: 0 s so far" in caplog.messages


@pytest.mark.parametrize("fault", [Fault.SILENCE, Fault.EXPIRED])
@pytest.mark.slow
def test_the_stop_tells_the_truth_in_time(
    source: DirectoryStore,
    through: Callable[..., S3Store],
    proxy: FaultProxy,
    said: Callable[[], list[str]],
    fault: Fault,
) -> None:
    proxy.begin(lambda _: fault)
    with watching(source, through(patience=2.0)) as arrival:
        saved(source, arrival, 1)
        started = time.monotonic()
        assert not arrival.settle(2.0)
        assert time.monotonic() - started < 30.0
        errors = [line for line in said() if line.startswith("ERROR")]
        assert len(errors) == 1
        assert "4 of its 4 files are not there" in errors[0]
        assert ("renew them" in errors[0]) == (fault is Fault.EXPIRED)


@pytest.mark.slow
def test_trouble_with_s3_is_said_once_and_does_not_end_the_watch(
    source: DirectoryStore,
    through: Callable[..., S3Store],
    proxy: FaultProxy,
    agent: Agent,
    said: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upload_monitor, "_LONGEST_PAUSE", 0.3)
    proxy.begin(lambda _: Fault.EXPIRED)
    with watching(source, through(patience=2.0), bound_seconds=60.0) as arrival:
        saved(source, arrival, 1)
        until(lambda: len(proxy.requests) >= 4)
        assert [line.count("could not see whether") for line in said()] == [1]
        agent.copy()
        proxy.begin()
        until(lambda: arrival.settle(0.5))


def test_an_impossible_bound_is_refused(source: DirectoryStore, store: S3Store) -> None:
    with pytest.raises(ValueError, match="bound_seconds is 0"):
        UploadMonitor(source, store, bound_seconds=0.0)
