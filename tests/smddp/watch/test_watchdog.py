"""What a rank may conclude from the positions that it reads, without other processes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smddp.cluster import Cluster
from smddp.process import process_tree
from smddp.watch import Watch, watchdog
from smddp.watch.position import Position
from smddp.watch.verdict import Verdict
from smddp.watch.watchdog import Watchdog
from tests.smddp.watch.test_verdict import at, waiting

AFTER = 5.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def other() -> Any:
    """The exchange with a second rank, whose positions the test sets."""
    return SimpleNamespace(reads=True, positions=[], silence=0.0, own=None)


@pytest.fixture
def dog(clock: Clock, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watchdog:
    monkeypatch.setattr(watchdog, "Exchange", lambda *_, **__: other)
    cluster = dataclasses.replace(Cluster.detect({}), world_size=2, local_world_size=2)
    membership: Any = SimpleNamespace(cluster=cluster, device=SimpleNamespace(type="cpu"), agent_serves_store=False)
    return watchdog_of(membership, tmp_path)


def watchdog_of(membership: Any, directory: Path, told: list[tuple[str, float]] | None = None) -> Watchdog:
    """Return a watchdog of a rank that notes in `told` when it hangs and moves."""
    told = [] if told is None else told
    return Watchdog(
        Watch(after=AFTER),
        membership,
        steps=lambda: 0,
        output_dir=directory,
        publish=lambda _: True,
        end=lambda _: None,
        hangs=lambda seconds: told.append(("hangs", seconds)),
        moves=lambda seconds: told.append(("moves", seconds)),
    )


def look(dog: Watchdog, other: Any, clock: Clock, own: Position, *others: Position, seconds: float = 1.0) -> None:
    other.positions = list(others)
    dog._sampler = SimpleNamespace(sample=lambda _: own)  # type: ignore[assignment]
    dog._look()
    clock.now += seconds


def hear(dog: Watchdog, other: Any, position: Position) -> Any:
    other.positions = [position]
    return dog._hear(waiting(0))


def test_a_position_that_may_be_old_is_not_judged(dog: Watchdog, clock: Clock, other: Any) -> None:
    # A rank shared its position within an early collective, trained some steps, and was stopped before the next one.
    old = waiting(1, beat=2, collectives=3)
    clock.now += 0.6  # the exchange reads it in its next round
    first_reads = clock.now
    while clock.now - first_reads < AFTER:
        heard = hear(dog, other, old)
        assert heard.is_early, f"judged after {clock.now - first_reads:.1f} s"
        clock.now += 0.3
    heard = hear(dog, other, old)
    assert [each.rank for each in heard.silent] == [1]


def test_a_position_that_changes_is_judged(dog: Watchdog, clock: Clock, other: Any) -> None:
    for beat in range(12):
        heard = hear(dog, other, at(1, beat=beat))
        clock.now += 1.0
    assert not heard.is_early
    assert [each.rank for each in heard.answering] == [0, 1]


def test_the_last_position_of_a_rank_that_has_ended_stays_true(dog: Watchdog, clock: Clock, other: Any) -> None:
    for _ in range(12):
        heard = hear(dog, other, at(1, beat=7, phase="ended"))
        clock.now += 1.0
    assert not heard.is_early
    assert [each.rank for each in heard.answering] == [0, 1]


def test_a_rank_that_judges_again_is_as_patient_as_before(dog: Watchdog, clock: Clock, other: Any) -> None:
    dog._rank = 1
    dog._hangs_since, dog.verdict = clock.now, "rank 0 hangs"  # this rank judged
    for beat in range(10):
        look(dog, other, clock, waiting(1), at(0, beat=beat))  # now the lowest rank judges
    assert dog._hangs_since is None
    assert not dog.verdict


def test_a_job_whose_steps_take_long_is_judged_later(dog: Watchdog, other: Any, clock: Clock, caplog: Any) -> None:
    slow = {"idle": 40.0, "still": 40.0, "usual": 20.0}
    for beat in range(5):
        look(dog, other, clock, waiting(0, **slow), at(1, beat=beat, **slow))
    assert not caplog.records
    slow["idle"] = slow["still"] = 101.0
    look(dog, other, clock, waiting(0, **slow), at(1, beat=9, **slow))
    assert "hang: rank 1" in caplog.text


def test_a_rank_alone_is_compared_with_nobody(
    clock: Clock, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "Exchange", lambda *_, **__: other)
    membership: Any = SimpleNamespace(
        cluster=Cluster.detect({}), device=SimpleNamespace(type="cpu"), agent_serves_store=False
    )
    alone = watchdog_of(membership, tmp_path)
    for _ in range(100):
        look(alone, other, clock, at(0, idle=0.0, still=0.0))
    alone._report_pace()
    assert not list(tmp_path.iterdir())


def test_a_hang_is_told_from_the_last_movement_to_the_next(
    clock: Clock, other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "Exchange", lambda *_, **__: other)
    membership: Any = SimpleNamespace(
        cluster=Cluster.detect({}), device=SimpleNamespace(type="cpu"), agent_serves_store=False
    )
    told: list[tuple[str, float]] = []
    dog = watchdog_of(membership, tmp_path, told)
    for idle in (0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 0.4, 1.4):
        look(dog, other, clock, at(0, idle=idle, still=idle))
    assert told == [("hangs", 5.5), ("hangs", 6.5), ("moves", 0.4)]
    for idle in (2.4, 3.4, 4.4, 5.4):
        look(dog, other, clock, at(0, idle=idle, still=idle))
    assert dog.verdict.startswith("rank 0 on algo-1 has not moved for 5 s")
    look(dog, other, clock, at(0, idle=6.4, still=0.1))  # it computes
    assert not dog.verdict
    assert told[3:] == [("hangs", 5.4), ("moves", 0.0)]


def test_ranks_that_compute_with_different_collectives_are_told_once(
    dog: Watchdog, other: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    own, differing = at(0, idle=0.1, digests={"": {64: 1}}), at(1, idle=0.1, digests={"": {64: 2}})
    dog._ends_hangs = False
    for _ in range(100):
        look(dog, other, clock, own, own, differing)
    assert [line.levelname for line in caplog.records] == ["ERROR"]
    assert "rank 1 on algo-2 called other collectives than rank 0 on algo-1" in caplog.text


@pytest.mark.parametrize(("looks", "ends"), [("bbgbbg", False), ("bbb", True)], ids=["two in a row", "three"])
def test_a_watchdog_survives_two_failed_looks_in_a_row(
    dog: Watchdog, other: Any, looks: str, ends: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = list(looks)

    def look() -> None:
        if left.pop(0) == "b":
            raise ValueError("no such line")
        if not left:
            dog._over.set()

    other.own, other.is_lost = waiting(0), False
    monkeypatch.setattr(dog, "_look", look)
    monkeypatch.setattr(dog, "_period", 0.01)
    dog.verdict = "of before"
    dog._run()
    assert caplog.text.count("ValueError: no such line") == looks.count("b")
    assert ("the watchdog ends" in caplog.text) == ends
    assert (other.own.phase, dog.verdict) == (("unwatched", "") if ends else ("backward", "of before"))


def test_a_verdict_that_failed_on_the_way_is_told_again(dog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[str] = []

    def publish(report: str) -> bool:
        published.append(report)
        if len(published) == 1:
            raise ValueError("no store")
        return True

    monkeypatch.setattr(dog, "_publish", publish)
    verdict = Verdict(kind="dead process", ranks=(1,), text="rank 1 has ended", is_sure=True)
    with pytest.raises(ValueError, match="no store"):
        dog._report(verdict, [])
    dog._report(verdict, [])
    dog._report(verdict, [])
    assert published == ["Hang (dead process): rank 1 has ended"] * 2


def test_a_silent_store_of_rank_0_is_rank_0_that_does_not_answer(dog: Watchdog, clock: Clock, other: Any) -> None:
    dog._rank, other.silence = 1, AFTER
    other.positions = [at(0)]
    heard = dog._hear(waiting(1))
    assert [each.rank for each in heard.silent] == [0]


def test_a_silent_store_of_the_launcher_is_no_rank_s_fault(
    dog: Watchdog, clock: Clock, other: Any, caplog: Any
) -> None:
    ended: list[str] = []
    dog._rank, dog._agent_serves_store, other.silence, dog._end = 1, True, AFTER, ended.append
    dog._watch = dataclasses.replace(dog._watch, patience=30.0)
    for _ in range(15):
        look(dog, other, clock, waiting(1, idle=60.0, still=60.0), at(0))
        other.silence += 1.0
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "slow: the launcher on the first host, through which the ranks learn of each other, does not" in caplog.text
    assert dog.verdict
    for _ in range(30):
        look(dog, other, clock, waiting(1, idle=60.0, still=60.0), at(0))
        other.silence += 1.0
    assert [each.levelname for each in caplog.records] == ["WARNING", "ERROR"]  # for four times the bound
    assert not ended
    look(dog, other, clock, waiting(1, idle=60.0, still=60.0), at(0), seconds=5.0)
    look(dog, other, clock, waiting(1, idle=60.0, still=60.0), at(0))
    assert len(ended) == 1
    assert ended[0].startswith("Hang (silent store): the launcher on the first host")


def test_after_the_launchers_silence_every_rank_is_observed_anew(
    dog: Watchdog, clock: Clock, other: Any, caplog: Any
) -> None:
    dog._rank, dog._agent_serves_store = 1, True
    idle = {"idle": 60.0, "still": 60.0}
    there = at(0, beat=1, processes="of another host")
    for beat in range(5):
        look(dog, other, clock, waiting(1), dataclasses.replace(there, beat=beat))
    for _ in range(30):  # the job hangs, and its store is silent
        other.silence += 1.0
        look(dog, other, clock, waiting(1, **idle), dataclasses.replace(there, beat=4))
    other.silence = 0.0
    caplog.clear()
    look(dog, other, clock, waiting(1, **idle), dataclasses.replace(there, beat=4))
    assert not caplog.records
    assert dog._hangs_since is None
    for beat in range(30, 40):
        look(dog, other, clock, waiting(1, idle=0.0), dataclasses.replace(there, beat=beat, idle=0.0))
    assert not caplog.records
    assert not dog.verdict


def test_a_rank_seen_at_its_disk_once_is_observed_anew(dog: Watchdog, clock: Clock, monkeypatch: Any) -> None:
    states = iter("SSSDSSSSSSSS")

    def threads(_: int) -> dict[int, process_tree.Thread]:
        return {1: process_tree.Thread(next(states), 0.0, 0.0)}

    monkeypatch.setattr(process_tree, "state", lambda _: "S")
    monkeypatch.setattr(process_tree, "threads", threads)
    found = []
    while "blocked" not in found:
        found.append(dog._state(at(0)))
        clock.now += 0.6
    assert found == ["unknown", "unknown", "unknown", "disk", "unknown", "unknown", "unknown", "blocked"]
