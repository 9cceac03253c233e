"""What an attempt measures while it runs, and its record on disk."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from pathlib import Path

import pytest

from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.goodput import PartClock, Recorder, read_account
from smddp.goodput import recorder as recorder_module
from smddp.goodput.attempt import MOST_MARKS, End, read_attempts


def begin(directory: Path, clock: PartClock, *, steps: int = 7, durable: int = 0) -> Recorder:
    directory.mkdir(exist_ok=True)
    return Recorder(
        DirectoryStore(directory), clock, world_size=2, resumed=3, steps=lambda: steps, durable=lambda: durable
    )


def test_each_second_is_in_one_part() -> None:
    clock = PartClock()
    for part in ("data", "training", "data", "other"):
        clock.enter(part)
        time.sleep(0.02)
    with clock.within("checkpoint"):
        time.sleep(0.03)
    assert clock.part == "other"
    before, found, after = time.perf_counter(), clock.seconds(), time.perf_counter()
    assert before - clock._first <= sum(found.values()) + 1e-9 <= after - clock._first + 2e-9
    assert found["data"] >= 0.04
    assert found["checkpoint"] >= 0.03
    assert found["hang"] == 0


def test_an_error_ends_no_part_but_the_end_of_a_generator_does() -> None:
    clock = PartClock()
    with pytest.raises(ZeroDivisionError), clock.within("evaluation"):
        1 / 0  # noqa: B018
    assert clock.part == "evaluation"
    clock.enter("training")
    with pytest.raises(GeneratorExit), clock.within("evaluation"):
        raise GeneratorExit
    assert clock.part == "training"


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_a_rewind_undoes_is_lost_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Clock()
    monkeypatch.setattr(recorder_module, "perf_counter", now)
    clock = PartClock()
    clock.enter("training")
    clock.mark_start(0)
    now.now += 2
    clock.mark(5)
    now.now += 3
    clock.mark(8)
    clock.enter("data")
    now.now += 2
    before = clock.seconds()
    clock.go_back(5, undone=4)
    after = clock.seconds()
    assert [mark.step for mark in clock.marks] == [0, 5]
    assert (clock.undone, after["training"]) == (4, clock.marks[-1].seconds["training"])
    assert after["start"] == before["start"]
    assert (after["lost"], after["data"]) == (5, 0)
    assert sum(after.values()) == sum(before.values())


def test_a_copy_from_another_thread_always_adds_up() -> None:
    clock, is_over, wrong = PartClock(), threading.Event(), list[float]()
    first = clock._first

    def copy() -> None:
        while not is_over.is_set():
            before = time.perf_counter()
            whole = sum(clock.seconds().values())
            if not before - first - 1e-6 <= whole <= time.perf_counter() - first + 1e-6:
                wrong.append(whole)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    copying = threading.Thread(target=copy)
    copying.start()
    try:
        for _ in range(20_000):
            clock.enter("data")
            clock.enter("training")
            clock.go_back(0, undone=1)
    finally:
        is_over.set()
        copying.join()
        sys.setswitchinterval(before)
    assert not wrong


def test_a_hang_takes_the_time_since_the_last_part_and_leaves_the_marks() -> None:
    clock = PartClock()
    clock.enter("training")
    time.sleep(0.02)
    clock.mark(5)
    time.sleep(0.03)
    clock.begin_hang()
    assert clock.seconds()["hang"] >= 0.03
    assert clock.seconds()["training"] >= clock.marks[-1].seconds["training"] >= 0.02


def test_hangs_within_one_part_end_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Clock()
    monkeypatch.setattr(recorder_module, "perf_counter", now)
    clock = PartClock()
    now.now += 5
    clock.enter("evaluation")
    now.now += 30
    clock.begin_hang(20)
    now.now += 1
    clock.begin_hang(21)  # the same one
    now.now += 10
    clock.end_hang(2)
    clock.end_hang(1)
    clock.begin_hang(15)  # it began to move before, and did not
    now.now += 3
    clock.end_hang(0)
    now.now += 7
    expected = {"start": 5, "evaluation": 10 + 7, "hang": 29 + 2 + 3}
    assert {part: value for part, value in clock.seconds().items() if value} == pytest.approx(expected)
    clock.enter("data")
    now.now += 4
    expected["data"] = 4
    assert {part: value for part, value in clock.seconds().items() if value} == pytest.approx(expected)


def test_who_enters_a_part_no_longer_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Clock()
    monkeypatch.setattr(recorder_module, "perf_counter", now)
    clock = PartClock()
    clock.enter("data")
    now.now += 30
    clock.begin_hang(40)  # the time before was another part's
    now.now += 1
    clock.enter("training")
    now.now += 2
    clock.mark(3)
    clock.end_hang(2.5)
    now.now += 1
    seconds = {part: value for part, value in clock.seconds().items() if value}
    assert seconds == pytest.approx({"hang": 31, "training": 3})


def test_marks_stay_few_and_keep_the_first_and_the_newest() -> None:
    clock = PartClock()
    clock.mark_start(3)
    clock.mark_start(4)
    for step in range(5, 500):
        clock.mark(step)
    clock.mark(499)
    steps = [mark.step for mark in clock.marks]
    assert steps == sorted(set(steps))
    assert len(steps) <= MOST_MARKS
    assert steps[0] == 3
    assert steps[-10:] == list(range(490, 500))


def test_the_record_is_there_at_once_after_a_save_and_at_the_end(tmp_path: Path) -> None:
    clock = PartClock()
    recorder = begin(tmp_path, clock, durable=5)
    _await(lambda: read_attempts(DirectoryStore(tmp_path))[0] != [])
    clock.mark(5)
    recorder.saved()
    _await(lambda: len(read_attempts(DirectoryStore(tmp_path))[0][0].marks) == 1)
    recorder.close("stopped")
    recorder.close("failed")  # too late
    [found] = read_account(DirectoryStore(tmp_path)).attempts
    assert (found.end, found.attempt.resumed, found.attempt.step, found.attempt.durable) == ("stopped", 3, 7, 5)


@pytest.mark.parametrize("end", ["finished", "failed"])
def test_the_wait_for_the_last_record_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: End) -> None:
    """And shorter where SIGKILL is near."""
    monkeypatch.setattr(recorder_module, "_LAST_SECONDS", 0.01 if end == "finished" else 600.0)
    monkeypatch.setattr(recorder_module, "_HURRIED_SECONDS", 600.0 if end == "finished" else 0.01)
    writes_on = threading.Event()
    monkeypatch.setattr(DirectoryStore, "write_beside", lambda *_: writes_on.wait(300))
    recorder = begin(tmp_path, PartClock())
    recorder.close(end)
    assert recorder._thread.is_alive()
    writes_on.set()


def test_signs_of_life_come_every_hundredth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "_LEAST_PAUSE", 0.01)
    recorder = begin(tmp_path, PartClock())
    ends = set[float]()
    _await(lambda: ends.add(read_attempts(DirectoryStore(tmp_path))[0][0].ended) or len(ends) > 3, wait=0.02)
    recorder.close()


def test_earlier_attempts_are_part_of_the_account_under_way(tmp_path: Path) -> None:
    begin(tmp_path, PartClock()).close("failed")
    recorder = begin(tmp_path, PartClock())
    _await(lambda: len(recorder.account().attempts) == 2)
    assert [each.end for each in recorder.account().attempts] == ["failed", "running"]
    recorder.close()


def test_a_record_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "goodput").write_text("in the way")
    caplog.set_level(logging.WARNING)
    recorder = begin(tmp_path, PartClock())
    _await(lambda: len(caplog.messages) > 0)
    recorder.saved()
    recorder.close("finished")
    assert len(caplog.messages) == 1
    assert "the goodput ledger of this attempt is not up to date, training continues" in caplog.messages[0]


def test_a_directory_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    recorder = begin(tmp_path / "run", PartClock())
    _await(lambda: (tmp_path / "run" / "goodput").is_dir())
    (tmp_path / "run").rename(tmp_path / "moved")
    recorder.close("finished")
    assert not (tmp_path / "run").exists()


def test_a_dropped_recorder_ends_its_thread(tmp_path: Path) -> None:
    recorder = begin(tmp_path, PartClock())
    thread = recorder._thread
    del recorder
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def _await(condition: object, *, wait: float = 0.01) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except IndexError:  # no record yet
            pass
        time.sleep(wait)
    pytest.fail("it did not happen in 60 s")
