from __future__ import annotations

import ast
import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from smddp.python_syntax import call_parser


class _Cycle:
    """Garbage whose collection runs Python code, so that Python may change to another thread."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        for _ in range(300):
            pass


@pytest.fixture
def _many_switches() -> Iterator[None]:
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(5, 5, 5)
    sys.setswitchinterval(1e-6)
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_many_switches")
def test_threads_that_parse_at_once_do_not_disturb_each_other() -> None:
    failures: list[BaseException] = []

    def parse(depth: int) -> None:
        if depth:
            parse(depth - 1)
            return
        for _ in range(300):
            _Cycle()
            try:
                assert call_parser(ast.literal_eval, "[1, (2, 3), {'a': [4]}]") == [1, (2, 3), {"a": [4]}]
            except BaseException as failure:
                failures.append(failure)

    threads = [threading.Thread(target=parse, args=(10 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_what_the_parser_raises_of_itself_is_raised() -> None:
    def fail(text: str) -> None:
        raise SystemError(text)

    with pytest.raises(SystemError, match="another"):
        call_parser(fail, "another fault")
    with pytest.raises(SyntaxError):
        call_parser(ast.parse, "a b")
