from __future__ import annotations

import io
import time

from rich.console import Console

from estimators.docker.build_log import BuildLog
from estimators.docker.build_view import clock, shown

LINES = ("Step 1/3 : ARG BASE", f"Step 2/3 : RUN {'install ' * 40}", "collecting torch", "Step 3/3 : COPY a b")


def watch(console: Console) -> str:
    log = BuildLog()
    with shown(console) as watcher:
        for line in LINES:
            log.read(line)
            watcher(log)
            time.sleep(0.2 if console.is_terminal else 0)  # the display renews itself eight times a second
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_log_gets_one_line_for_each_step_that_works() -> None:
    lines = watch(Console(file=io.StringIO(), width=40)).splitlines()
    assert [line[:20] for line in lines] == ["Step 2/3: RUN instal", "Step 3/3: COPY a b"]
    assert len(lines[0]) == 110


def test_a_person_sees_the_step_its_time_and_the_last_line() -> None:
    text = watch(Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None))
    assert "Step 2/3: RUN install" in text
    assert "0:00" in text
    assert "collecting torch" in text
    assert max(map(len, text.splitlines())) < 60 + 20  # and the codes that move the cursor


def test_clock() -> None:
    assert [clock(0.9), clock(83), clock(3600)] == ["0:00", "1:23", "60:00"]
