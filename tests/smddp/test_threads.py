from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from smddp.threads import NoThreadError, Worker, start_thread, work_together
from tests.interrupts import HandlerError, handler_error


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("can't start new thread", NoThreadError),
        ("can't create new thread at interpreter shutdown", NoThreadError),
        ("DataLoader worker (pid 7) is killed by signal: Killed.", RuntimeError),
    ],
)
def test_only_pythons_own_error_means_that_no_thread_can_start(
    monkeypatch: pytest.MonkeyPatch, text: str, kind: type[RuntimeError]
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match=text.replace("(", r"\(").replace(")", r"\)")) as raised:
        start_thread(threading.Thread())
    assert type(raised.value) is kind


@pytest.mark.parametrize("own", [KeyError("a thread"), RuntimeError("release unlocked lock")])
def test_an_error_of_a_handler_within_the_start_is_raised_as_it_is(
    monkeypatch: pytest.MonkeyPatch, own: Exception
) -> None:
    """`Thread.start` then fails itself: the thread has removed its own entry, or a lock is not locked."""

    def fail(_: threading.Thread) -> None:
        try:
            raise HandlerError("of the handler")
        finally:
            raise own

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(HandlerError, match="of the handler"):
        start_thread(threading.Thread())


def test_a_worker_runs_or_never_begins_whenever_a_handler_raises() -> None:
    chance, raised = random.Random(0), 0
    for _ in range(400):
        done: list[int] = []
        worker = Worker(partial(_note, done), "worker")
        try:
            with handler_error(chance.uniform(0.00002, 0.0005)):
                worker.start()
                worker.wait()
        except HandlerError:
            raised += 1
        worker.give_up()
        assert worker.wait(30)
        assert not worker.is_running
        assert done == ([1, 2] if worker.has_begun else [])
    assert raised > 10


def _note(done: list[int]) -> None:
    done.append(1)
    time.sleep(0.001)
    done.append(2)


def test_a_wait_that_a_handler_ends_does_not_end_the_work() -> None:
    go = threading.Event()
    worker = Worker(go.wait, "worker")
    worker.start()
    with pytest.raises(HandlerError), handler_error(0.05):
        worker.wait()
    assert worker.is_running  # Thread.is_alive() says the opposite, up to Python 3.12
    assert not worker.wait(0.1)
    go.set()
    assert worker.wait(30)


def test_a_worker_runs_from_its_start_on(monkeypatch: pytest.MonkeyPatch) -> None:
    go, decide = threading.Event(), Worker._decide

    def decide_late(self: Worker, *, begins: bool) -> bool:
        time.sleep(0.2)
        return decide(self, begins=begins)

    monkeypatch.setattr(Worker, "_decide", decide_late)
    worker = Worker(go.wait, "worker")
    assert worker.wait()
    worker.start()
    assert worker.is_running
    assert not worker.wait(0.01)
    go.set()
    assert worker.wait(30)
    assert not worker.is_running


def test_no_thread_is_left_after_the_wait() -> None:
    before = threading.active_count()
    for _ in range(200):
        worker = Worker(lambda: None, "worker")
        worker.start()
        assert worker.wait(30)
        assert threading.active_count() <= before  # one of an earlier test may end


def test_a_fork_has_no_worker() -> None:
    go = threading.Event()
    worker = Worker(go.wait, "worker")
    worker.start()
    if (child := os.fork()) == 0:
        os._exit(int(worker.is_running or not worker.wait(1)))
    assert os.waitpid(child, 0)[1] == 0
    go.set()
    assert worker.wait(30)


def test_what_works_together_has_ended_when_an_error_is_raised() -> None:
    chance, running, raised = random.Random(1), set[int](), 0
    for _ in range(150):
        left = iter(range(12))

        def work(left: Iterator[int] = left) -> None:
            for number in left:
                is_other = threading.current_thread() is not threading.main_thread()
                if is_other:
                    running.add(number)
                time.sleep(0.0005)
                if is_other:
                    running.discard(number)

        try:
            with handler_error(chance.uniform(0.0, 0.003)):
                work_together(work, threads=4, name="worker", stop=lambda _, left=left: list(left))
        except HandlerError:
            raised += 1
        assert not running
    assert raised > 10
