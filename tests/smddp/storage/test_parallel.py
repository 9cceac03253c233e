import random
import threading
import time
from functools import partial

import pytest

from smddp.storage.parallel import in_parallel
from tests.interrupts import HandlerError, handler_error


def test_gives_the_results_in_order() -> None:
    def call(number: int) -> int:
        time.sleep(0.01 * (number % 3))
        return number * number

    assert in_parallel([lambda number=number: call(number) for number in range(20)], threads=4) == [
        number * number for number in range(20)
    ]
    assert in_parallel([], threads=4) == []


def test_makes_as_many_calls_at_a_time_as_allowed() -> None:
    together = threading.Barrier(3, timeout=10)
    in_parallel([together.wait] * 6, threads=3)


def test_the_first_failure_keeps_the_rest_from_beginning_and_waits_for_what_runs() -> None:
    began, ended = [], []

    def call(number: int) -> None:
        began.append(number)
        if number == 1:
            raise OSError("no")
        time.sleep(0.2)
        ended.append(number)

    with pytest.raises(OSError, match="no"):
        in_parallel([lambda number=number: call(number) for number in range(50)], threads=2)
    assert sorted(ended) == sorted(set(began) - {1})
    assert len(began) <= 3


def test_no_call_runs_any_more_when_a_handlers_error_is_raised() -> None:
    chance, running = random.Random(0), set[int]()

    def call(number: int) -> int:
        is_helper = threading.current_thread() is not threading.main_thread()
        if is_helper:  # the handler may end this thread's own call anywhere
            running.add(number)
        time.sleep(0.001)
        if is_helper:
            running.discard(number)
        return number

    raised = 0
    for _ in range(150):
        try:
            with handler_error(chance.uniform(0.0, 0.006)):
                assert in_parallel([partial(call, number) for number in range(12)], threads=4) == list(range(12))
        except HandlerError:
            raised += 1
        assert not running
    assert raised
