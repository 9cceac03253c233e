"""Which checkpoints stay, what is removed, and how little is read for it."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint.restore.listing import list_checkpoints
from smddp.checkpoint.retention import Pruner, Retention, which_stay
from smddp.checkpoint.stores import StoreError
from smddp.checkpoint.stores.directory import DirectoryStore
from tests.smddp.checkpoint.by_hand import RUN, write_checkpoint

values = st.dictionaries(st.integers(0, 60), st.none() | st.floats(), min_size=1)
retentions = st.builds(
    Retention,
    last=st.integers(1, 5),
    best=st.integers(1, 4),
    metric=st.just("accuracy"),
    mode=st.sampled_from(["max", "min"]),
    every=st.none() | st.integers(1, 12),
)


@given(values, retentions)
def test_exactly_the_last_the_best_and_every_nth_stay(steps: Mapping[int, float | None], keep: Retention) -> None:
    stay = which_stay(steps, keep)
    assert stay <= set(steps)
    assert max(steps) in stay
    last = {step for step in steps if sum(other > step for other in steps) < keep.last}
    lasting = {step for step in steps if keep.every and step % keep.every == 0}
    assert last | lasting <= stay

    def is_better(one: int, other: int) -> bool:
        a, b = steps[one], steps[other]
        assert a is not None
        assert b is not None
        return (a > b if keep.mode == "max" else a < b) or (a == b and one < other)

    measured = {step for step, value in steps.items() if value is not None and not math.isnan(value)} - lasting
    best = {step for step in measured if sum(is_better(other, step) for other in measured) < keep.best}
    assert stay == last | lasting | best


@given(values, retentions)
def test_what_was_removed_would_not_have_stayed_later(steps: Mapping[int, float | None], keep: Retention) -> None:
    """Removing after each save leaves what removing once at the end would have left."""
    left: dict[int, float | None] = {}
    for step in sorted(steps):
        left[step] = steps[step]
        left = {step: left[step] for step in which_stay(left, keep)}
    assert set(left) == which_stay(steps, keep)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"last": 0}, "last is 0: at least one checkpoint must stay"),
        ({"best": -1}, "best is -1"),
        ({"best": 1}, "best is 1 and metric is None: give both, or neither"),
        ({"metric": "loss"}, "best is 0 and metric is 'loss': give both, or neither"),
        ({"best": 1, "metric": "loss", "mode": "least"}, "mode is 'least'"),
        ({"every": 0}, "every is 0"),
        ({"last": 2.5}, "last is 2.5: give a whole number"),
        ({"best": True, "metric": "loss"}, "best is True"),
        ({"every": 10.0}, "every is 10.0: give a whole number or None"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Retention(**options)


class CountingStore(DirectoryStore):
    """Counts the manifests that are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[int] = []

    def read_manifest(self, step: int) -> bytes | None:
        self.reads.append(step)
        return super().read_manifest(step)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "checkpoints")


def save(store: DirectoryStore, *steps: int, attempt: int = 1, **metrics: float) -> None:
    for step in steps:
        write_checkpoint(store, step, {"model": {"step": step}}, attempt=attempt, metrics=metrics)


def begin(store: DirectoryStore, step: int, *, attempt: int = 1) -> None:
    """Leave what a save leaves that is interrupted."""
    store.write(step, f"{RUN}-{attempt:04}", "state.json", [memoryview(b"{}")])


def test_the_last_few_stay(store: CountingStore) -> None:
    save(store, 10, 20, 30, 40)
    assert Pruner(store, Retention(last=2)).prune(40) == [10, 20]
    assert store.steps() == [30, 40]
    assert Pruner(store, Retention(last=2)).prune(40) == []


def test_the_best_survive_a_resume(store: CountingStore) -> None:
    keep = Retention(last=1, best=2, metric="loss", mode="min")
    for step, loss in (10, 0.5), (20, 0.3), (30, math.nan), (40, 0.4), (50, 0.9):
        save(store, step, loss=loss)
        Pruner(store, keep).prune(step)  # a new life after each save
    save(store, 60, accuracy=1.0)
    Pruner(store, keep).prune(60)
    assert store.steps() == [20, 40, 60]


def test_every_nth_stays_for_ever_and_is_read_only_among_the_last(store: CountingStore) -> None:
    save(store, *range(0, 500, 10))
    store.reads.clear()
    keep = Retention(last=2, every=20)
    Pruner(store, keep).prune(490)
    assert store.steps() == [*range(0, 500, 20), 490]
    assert sorted(set(store.reads)) == sorted({480, *range(10, 500, 20)})
    store.reads.clear()
    Pruner(store, keep).prune(490)
    assert sorted(set(store.reads)) == [480, 490]


def test_a_manifest_is_read_once_however_often_is_saved(store: CountingStore) -> None:
    keep = Retention(last=3, best=2, metric="score", every=50)
    pruner = Pruner(store, keep)
    for step in range(10, 300, 10):
        save(store, step, score=-float(step))
        store.reads.clear()
        pruner.prune(step)
        assert store.reads == [step]
    assert store.steps() == [10, 20, 50, 100, 150, 200, 250, 270, 280, 290]


def test_a_step_that_was_saved_again_is_read_again(store: CountingStore) -> None:
    pruner = Pruner(store, Retention(last=1, best=1, metric="score"))
    save(store, 10, score=0.5)
    pruner.prune(10)
    save(store, 20, score=0.1)
    pruner.prune(20)
    save(store, 20, attempt=2, score=0.9)
    pruner.prune(20)
    assert store.steps() == [20]


def test_unfinished_and_unreadable_ones_before_the_newest_go_and_do_not_count(store: CountingStore) -> None:
    save(store, 10, 20, 30, 40, 60)
    begin(store, 25)
    begin(store, 50)
    Path(store.path(30), "manifest.json").write_bytes(b"damaged")
    Path(store.path(35)).mkdir()
    Path(store.path(35), "manifest.json").write_bytes(Path(store.path(10), "manifest.json").read_bytes())
    assert Pruner(store, Retention(last=3)).prune(60) == [10, 25, 30, 35, 50]
    assert store.steps() == [20, 40, 60]


def test_an_unfinished_one_that_would_stay_for_ever_goes(store: CountingStore) -> None:
    save(store, 10, 20)
    begin(store, 100)
    save(store, 110, 120)
    assert Pruner(store, Retention(last=3, every=100)).prune(120) == [10, 100]


def test_what_comes_after_the_newest_is_left_alone(store: CountingStore) -> None:
    save(store, 10, 20, 30)
    begin(store, 40)
    assert Pruner(store, Retention(last=1)).prune(20) == [10]
    assert store.steps() == [20, 30, 40]


def test_what_a_newer_smddp_wrote_is_left_alone_and_does_not_count(store: CountingStore) -> None:
    save(store, 10, 20, 30)
    path = Path(store.path(20), "manifest.json")
    newer = path.read_bytes().replace(b'"format": 2', b'"format": 9')
    path.write_bytes(with_its_own_digest(newer))
    assert [info.status for info in list_checkpoints(store.root)] == ["valid", "newer", "valid"]
    assert Pruner(store, Retention(last=2)).prune(30) == []
    assert Pruner(store, Retention(last=1)).prune(30) == [10]
    assert store.steps() == [20, 30]


def with_its_own_digest(manifest: bytes) -> bytes:
    digest = json.loads(manifest)["xxh3_128"].encode()
    unsigned = manifest.replace(digest, b"0" * 32, 1)
    return unsigned.replace(b"0" * 32, xxhash.xxh3_128_hexdigest(unsigned).encode(), 1)


@pytest.mark.parametrize("newest", [30, 40])
def test_nothing_is_removed_while_the_newest_is_not_there(
    store: CountingStore, newest: int, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 10, 20, 30)
    begin(store, 40)
    Path(store.path(30), "manifest.json").write_bytes(b"damaged")
    assert Pruner(store, Retention(last=1)).prune(newest) == []
    assert store.steps() == [10, 20, 30, 40]
    assert f"removed no checkpoint, because the newest, {store.path(newest)}" in caplog.text


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, os.strerror(errno.EIO)), StoreError("the server does not answer", transient=True)]
)
def test_one_that_cannot_be_read_now_is_not_removed(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Unreadable(DirectoryStore):
        def read_manifest(self, step: int) -> bytes | None:
            if step == 20:
                raise error
            return super().read_manifest(step)

    save(DirectoryStore(tmp_path), 10, 20, 30, 40)
    assert Pruner(Unreadable(tmp_path), Retention(last=2)).prune(40) == [10]
    assert Pruner(Unreadable(tmp_path), Retention(last=1)).prune(40) == [30]
    assert f"left {tmp_path}/step-000000000020 in place, for it cannot be read" in caplog.text


def test_what_cannot_be_removed_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(DirectoryStore):
        stubborn = True

        def remove(self, step: int) -> None:
            if self.stubborn and step == 10:
                raise StoreError("the disk is read-only")
            super().remove(step)

    store = Stubborn(tmp_path)
    save(store, 10, 20, 30)
    pruner = Pruner(store, Retention(last=1))
    assert pruner.prune(30) == [20]
    assert "could not remove" in caplog.text
    assert "the disk is read-only; trying again after the next save" in caplog.text
    store.stubborn = False
    assert pruner.prune(30) == [10]


def test_old_attempts_at_a_checkpoint_that_stays_are_removed(store: CountingStore) -> None:
    save(store, 10)
    save(store, 10, attempt=2)  # and killed before the first one was discarded
    begin(store, 10, attempt=3)
    pruner = Pruner(store, Retention(last=2))
    pruner.prune(10)
    assert len(store.attempts(10)) == 3  # the newest is not looked into: somebody may be at work there
    save(store, 20)
    pruner.prune(20)
    assert store.attempts(10) == [f"{RUN}-0002"]
    assert [info.status for info in list_checkpoints(store.root)] == ["valid", "valid"]


def test_the_log_says_what_was_removed(store: CountingStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "smddp.checkpoint.retention")
    save(store, 10, 20)
    begin(store, 5)
    Pruner(store, Retention(last=1)).prune(20)
    assert f"removed {store.path(5)}: its save was interrupted" in caplog.text
    assert f"removed {store.path(10)}: newer or better ones are kept" in caplog.text
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG"]


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")], ids=["gone", "cut"])
def test_one_whose_files_are_not_all_there_neither_counts_nor_is_the_best(
    store: CountingStore, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "smddp.checkpoint.retention")
    for step, score in (10, 0.5), (20, 0.9), (30, 0.1), (40, 0.2), (50, 0.3):
        save(store, step, score=score)
    for step in (20, 40):
        spoil(next(Path(store.path(step)).rglob("state.json")))
    assert Pruner(store, Retention(last=2, best=1, metric="score")).prune(50) == [20, 40]
    assert store.steps() == [10, 30, 50]
    assert f"removed {store.path(20)}: state.json " in caplog.text


def test_the_sizes_of_the_files_are_asked_for_once(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def size(step: int, directory: str, name: str) -> int | None:
        asked.append(step)
        return DirectoryStore.size(store, step, directory, name)

    monkeypatch.setattr(store, "size", size)
    pruner = Pruner(store, Retention(last=3, every=20))
    for step in range(10, 200, 10):
        save(store, step)
        asked.clear()
        pruner.prune(step)
        assert set(asked) == {step}
    asked.clear()
    Pruner(store, Retention(last=1, every=20)).prune(190)
    assert not {step for step in asked if step % 20 == 0}
