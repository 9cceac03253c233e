"""Who is told what happens to a job never ends who tells."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from estimators.job_handle import events
from estimators.job_handle.events import Listener, StatusChange

EVENT = StatusChange(time=datetime(2026, 1, 1, tzinfo=timezone.utc), status="Training", message="")


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (r"printf '\377'; exit 3", "on_event ended with exit code 3, and the wait continues: .*\ufffd"),
        ("true\0", r"on_event can't be run, and the wait continues: 'true\\x00': embedded null byte"),
    ],
)
def test_a_command_that_cannot_be_run_or_read_is_warned_of(
    command: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    Listener(command, "digits").tell(EVENT)
    (message,) = warned(caplog)
    assert re.search(said, message)


def test_a_machine_without_room_for_a_process_is_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    Listener("true", "digits").tell(EVENT)
    assert warned(caplog) == [
        "on_event can't be run, and the wait continues: 'true': [Errno 11] Resource temporarily unavailable"
    ]


def test_what_a_command_leaves_in_the_background_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    Listener("sleep 25 & exit 0", "digits").tell(EVENT)
    assert time.monotonic() - began < 20
    assert warned(caplog) == []


def test_a_command_that_is_ended_leaves_no_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "COMMAND_SECONDS", 1.5)
    os.mkfifo(tmp_path / "held")
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    Listener(f"(sleep 60) 3>{tmp_path}/held & wait", "digits").tell(EVENT)
    (message,) = warned(caplog)
    assert "ended after 1.5 seconds" in message
    # The shell may have been ended before it opened the pipe, and an end without a first writer is none.
    os.close(os.open(tmp_path / "held", os.O_WRONLY | os.O_NONBLOCK))
    readable, _, _ = select.select([reader], [], [], 30)
    assert readable and os.read(reader, 1) == b"", "somebody holds the other end"
    os.close(reader)


def test_failures_of_a_kind_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    told = []

    def fail(event: object) -> None:
        told.append(event)
        raise KeyError(len(told)) if len(told) % 2 else OSError(len(told))

    listening = Listener(fail, "digits")
    for _ in range(6):
        listening.tell(EVENT)
    assert warned(caplog) == [
        "on_event failed, and the wait continues: KeyError: 1",
        "on_event failed, and the wait continues: OSError: 2",
    ]
