"""A job that is waited for in a real terminal: a program on one side of a pty, a small screen reads the other."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.terminal import screen

PROGRAM = """
import sys, time
from datetime import datetime, timezone
from estimators.job_handle import follower
from estimators.training_job import TrainingJob

follower._SHORTEST_POLL = follower._LONGEST_POLL = 0.03
began = time.time()
DEFINITIONS = [{"Name": name, "Regex": f"{name}=([0-9.]+)"} for name in ("loss", "samples_per_second")]

class Session:
    sagemaker_client = boto_session = property(lambda self: self)
    exceptions = type("exceptions", (), {"ResourceNotFoundException": KeyError})
    looks = 0  # at each one the job prints a line more, until its end

    def client(self, service):
        return self

    def describe_training_job(self, TrainingJobName):
        self.looks += 1
        ended = self.looks > LOOKS
        now = datetime.fromtimestamp(began, timezone.utc)
        statuses = ["Starting", "Training", *(["Completed"] if ended else [])]
        return {
            "TrainingJobStatus": "Completed" if ended else "InProgress",
            "SecondaryStatusTransitions": [{"Status": status, "StartTime": now} for status in statuses],
            "AlgorithmSpecification": {"MetricDefinitions": DEFINITIONS},
            "HyperParameters": {"epochs": "4"},
        }

    def get_paginator(self, name):
        return self

    def paginate(self, **names):
        return [{"logStreams": [{"logStreamName": "digits-1/algo-1-17"}]}]

    def get_log_events(self, nextToken="0", **names):
        number, end = int(nextToken), min(self.looks, 40)
        lines = [f"step={i} epoch={i // 10} loss={4 / (1 + i):.4f} samples_per_second=812" for i in range(1, 41)]
        events = [
            {"timestamp": int(1000 * (began + i)), "message": lines[i] + (" x" * 80 if i == 5 else "")}
            for i in range(number, end)
        ]
        return {"events": events, "nextForwardToken": str(max(number, end))}

job = TrainingJob("digits-1", Session())
print("before", flush=True)
job.wait()
print("after", sys.stdout.isatty())
"""


def in_terminal(*, looks: int, interrupt_at: bytes | None = None, **environ: str) -> tuple[int, bytes]:
    """Run the program; give its exit code and all that it wrote."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("LOOKS", str(looks))],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environ},
    )
    os.close(terminal)
    output = b""
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                output += os.read(controller, 65536)
            except OSError:  # the program has ended
                break
            if interrupt_at is not None and interrupt_at in output:
                program.send_signal(signal.SIGINT)
                interrupt_at = None
        return program.wait(10), output
    finally:
        program.kill()
        program.wait()
        os.close(controller)


def plain(line: str) -> str:
    parts = line.split("\x1b[")
    return parts[0] + "".join(part.partition("m")[2] for part in parts[1:])


def test_a_live_line_below_the_log_says_how_far_the_job_is() -> None:
    code, output = in_terminal(looks=40)
    lines, live = ([plain(line) for line in part] for part in screen(output))
    assert code == 0, output
    told = [line for line in lines if line.startswith("algo-1 | ")]
    assert [line.split()[2] for line in told] == [f"step={number}" for number in range(1, 41)]
    assert told[5].endswith(" x" * 80)
    assert lines[0] == "before"
    assert [line for line in lines if line][-1] == "after True"
    assert not [line for line in lines if "ETA" in line], "a live line stayed"
    fullest = max(live, key=len)
    for part in ("Training", "epoch ", "/4", "step ", "loss ", "812 samples/s", "ETA ", "█", "▁"):
        assert part in fullest
    assert max(map(len, live)) < 110
    assert b"\x1b[?25l" not in output, "the cursor was hidden"


def test_ctrl_c_leaves_a_terminal_without_the_live_line() -> None:
    code, output = in_terminal(looks=10_000, interrupt_at=b"step=2")
    lines, live = ([plain(line) for line in part] for part in screen(output))
    assert code == -signal.SIGINT
    assert live
    assert lines[-1] == ""
    assert not [line for line in lines if line.startswith(("Training ", "Starting "))]
    assert [line for line in lines if "goes on without you" in line]
    assert [line for line in lines if line][-1] == "KeyboardInterrupt"


@pytest.mark.parametrize(("name", "value"), [("SMDDP_PROGRESS", "0"), ("TERM", "dumb")])
def test_a_live_line_can_be_turned_off(name: str, value: str) -> None:
    code, output = in_terminal(looks=40, **{name: value})
    assert code == 0
    assert b"\r\x1b[K" not in output
    assert b"step=40" in output
