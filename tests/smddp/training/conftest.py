"""Each test leaves the process's answer to a stop's signals as it was: what is ignored is inherited by every child."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from smddp.process.preemption import STOP_SIGNALS


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
