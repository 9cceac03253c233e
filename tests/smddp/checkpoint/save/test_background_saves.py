"""One thing at a time in the background, nothing that it raises is lost, and Python can end whatever it does."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from smddp.checkpoint.save.attempt import Moment, SaveReport
from smddp.checkpoint.save.background_saves import BackgroundSaves, BackgroundTask
from smddp.errors import CheckpointError
from tests.interrupts import HandlerError, alarm_at_the_first_call, handler_error

if TYPE_CHECKING:
    from smddp.checkpoint.save.rank_saver import RankSaver


def test_it_works_beside_the_caller_and_gives_the_result_once() -> None:
    task: BackgroundTask[int] = BackgroundTask()
    go = threading.Event()
    task.submit(lambda _: go.wait(30) and 7, name="seven")
    assert task.under_way == "seven"
    assert task.result() is None
    assert not task.wait(0.01)
    go.set()
    assert task.wait()
    assert task.under_way is None
    assert task.result() == 7
    assert task.result() is None


def fail(_: threading.Event) -> None:
    raise OSError("the disk is gone")


def test_an_error_is_raised_once_with_its_own_traceback() -> None:
    task: BackgroundTask[None] = BackgroundTask()
    task.submit(fail, name="failure")
    task.wait()
    with pytest.raises(OSError, match="the disk is gone") as raised:
        task.result()
    assert "fail" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    task.result()
    task.submit(lambda _: None, name="next")
    task.wait()


def test_a_thread_that_cannot_start_leaves_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    task: BackgroundTask[int] = BackgroundTask()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="new thread"):
        patch.setattr(threading.Thread, "start", refuse)
        task.submit(lambda _: 7, name="seven")
    assert task.wait()
    assert task.give_up() is None
    task.submit(lambda _: 7, name="seven")
    assert task.wait()
    assert task.result() == 7


def test_an_action_runs_and_is_waited_for_or_never_begins_whenever_a_handler_raises() -> None:
    chance, raised = random.Random(0), 0
    for _ in range(400):
        task: BackgroundTask[int] = BackgroundTask()
        begun: list[int] = []

        def action(_: threading.Event, begun: list[int] = begun) -> int:
            begun.append(1)
            time.sleep(0.002)
            begun.append(2)
            return 7

        try:
            with handler_error(chance.uniform(0.00002, 0.0005)):
                task.submit(action, name="seven")
                time.sleep(0.001)
        except HandlerError:
            raised += 1
        assert task.wait(30)
        if task.is_free:
            time.sleep(0.005)
            assert not begun
        else:
            assert task.result() == 7
            assert begun == [1, 2]
    assert raised > 10


def test_there_is_no_thread_when_there_is_nothing_to_do() -> None:
    before = threading.active_count()
    task: BackgroundTask[None] = BackgroundTask()
    for _ in range(3):
        task.submit(lambda _: None, name="nothing")
        task.wait()
        task.result()
        assert threading.active_count() <= before  # one of an earlier test may end


def test_it_keeps_nothing_of_what_it_did() -> None:
    class Large:
        pass

    large = Large()
    gone = weakref.ref(large)
    task: BackgroundTask[None] = BackgroundTask()
    task.submit(lambda _, large=large: None, name="large")  # type: ignore[misc]
    task.wait()
    del large
    assert gone() is None


def test_it_tells_what_is_under_way_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smddp.checkpoint.save.background_saves.GRACE_SECONDS", 0.1)
    task: BackgroundTask[str] = BackgroundTask()
    task.submit(lambda cancelled: "given up" if cancelled.wait(30) else "went on", name="patient")
    assert task.give_up() == "patient"
    assert task.wait(30)
    assert task.result() == "given up"
    monkeypatch.setattr("smddp.checkpoint.save.background_saves.GRACE_SECONDS", 30.0)
    task.submit(lambda _: "done", name="quick")
    assert task.give_up() is None
    assert task.result() == "done"


def test_a_child_that_was_forked_meanwhile_goes_its_own_way() -> None:
    task: BackgroundTask[int] = BackgroundTask()
    go = threading.Event()
    task.submit(lambda _: go.wait(30) and 1, name="the parent's")
    child = os.fork()
    if child == 0:
        good = task.wait() and task.result() is None
        task.submit(lambda _: 2, name="the child's")
        task.wait()
        os._exit(0 if good and task.result() == 2 else 1)
    _, status = os.waitpid(child, 0)
    go.set()
    task.wait()
    assert os.waitstatus_to_exitcode(status) == 0
    assert task.result() == 1


HANGS = {
    "waiting, until it is told to give up": ("lambda cancelled: cancelled.wait(300)", "pass", 0),
    "in a system call": ("lambda _: os.read(os.pipe()[0], 1)", "raise ValueError('mine')", 1),
    "in hashing": ("lambda _: [xxhash.xxh3_128_digest(large) for _ in range(9999)]", "sys.exit(3)", 3),
    "in the store of torch.distributed": ("poll", "pass", 0),
}

PROGRAM = """
import logging, os, sys, threading, time, xxhash
from torch.distributed import TCPStore
from smddp.checkpoint.save import background_saves
from smddp.checkpoint.save.save_group import SaveResult, RankResult, ResultExchange

logging.basicConfig(level=logging.INFO)
background_saves.GRACE_SECONDS = 0.5
large = bytes(2 * 10**8)
store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

def poll(cancelled):
    ResultExchange(store, rank=0, world_size=2, run="r").collect(1, RankResult(), cancelled)

background = background_saves.BackgroundTask()
background.submit({hang}, name="a checkpoint")
time.sleep(0.2)
{end}
"""


@pytest.mark.parametrize(("hang", "end", "code"), HANGS.values(), ids=HANGS)
@pytest.mark.slow
def test_a_process_ends_whatever_is_under_way(hang: str, end: str, code: int) -> None:
    program = PROGRAM.format(hang=hang, end=end)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stderr
    assert "the process ends while a checkpoint is being written" in ended.stderr


@pytest.mark.slow
def test_a_process_that_ends_lets_a_short_save_finish(tmp_path: Path) -> None:
    program = f"""
import time, pathlib
from smddp.checkpoint.save.attempt import SaveReport, SaveRequest
from smddp.checkpoint.save.background_saves import BackgroundSaves, BackgroundTask
background = BackgroundTask()
background.submit(lambda _: (time.sleep(0.5), pathlib.Path({str(tmp_path / "done")!r}).touch()), name="short")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
    assert (tmp_path / "done").exists()


class Instant:
    """Stand for the saver of a rank: each save is durable at once."""

    def request(self, number: int, moment: Moment, **_: object) -> SimpleNamespace:
        return SimpleNamespace(number=number, step=moment.step, failure=None)

    def save(self, request: SimpleNamespace, _: threading.Event) -> SaveReport:
        return SaveReport(step=request.step, stall_seconds=0, waited_seconds=0, durable_seconds=0.1, size=10**6)

    def path(self, step: int) -> str:
        return f"s3://bucket/{step}"

    def prune(self, request: SimpleNamespace) -> None:
        pass


@pytest.mark.parametrize("failure", [CheckpointError("lost contact"), ZeroDivisionError("a defect")])
def test_a_rank_takes_part_in_a_save_whatever_became_of_the_one_before(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    saves = BackgroundSaves(tolerate_failures=0)
    with monkeypatch.context() as patch:
        patch.setattr(Instant, "save", fail)
        saves.save(cast("RankSaver", Instant()), Moment(step=1), None)
        while saves.are_busy:
            time.sleep(0.001)
    with pytest.raises(type(failure), match=str(failure)):
        saves.save(cast("RankSaver", Instant()), Moment(step=2), None)
    report = saves.wait()
    assert report is not None  # the other ranks would wait for this rank's part
    assert report.step == 2


def test_an_error_of_a_signal_s_handler_waits_for_the_earlier_save_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saves = BackgroundSaves(tolerate_failures=0)
    go, whole = threading.Event(), Instant.save

    def save_late(self: Instant, *arguments: Any) -> SaveReport:
        assert go.wait(30)
        return whole(self, *arguments)

    monkeypatch.setattr(Instant, "save", save_late)
    saves.save(cast("RankSaver", Instant()), Moment(step=1), None)
    alarm_at_the_first_call(monkeypatch, BackgroundTask, "wait")
    with pytest.raises(HandlerError), handler_error(60, then=go.set):
        saves.save(cast("RankSaver", Instant()), Moment(step=2), None)
    report = saves.wait()
    assert report is not None
    assert (report.step, saves.count) == (2, 2)


@pytest.mark.parametrize(("seconds", "said"), [(600.0, [1]), (0.0, [1, 2, 3])])
def test_of_quick_saves_one_is_said_in_ten_minutes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seconds: float, said: list[int]
) -> None:
    monkeypatch.setattr("smddp.checkpoint.save.background_saves._SAID_SECONDS", seconds)
    caplog.set_level(logging.INFO)
    saves = BackgroundSaves(tolerate_failures=0)
    saves.is_main = True
    for step in (1, 2, 3):
        saves.save(cast("RankSaver", Instant()), Moment(step=step), None)
        saves.wait()
    assert [message.split(":")[1] for message in caplog.messages] == [f"//bucket/{step}" for step in said]
