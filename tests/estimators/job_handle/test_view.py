"""A running job as a person sees it: in a real terminal, whose screen is read, in a real notebook kernel, in a file."""

from __future__ import annotations

import builtins
import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from contextlib import redirect_stdout
from datetime import datetime, timezone
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from estimators.job_handle.events import MetricValue, StatusChange
from estimators.job_handle.view import LogView, ProgressLine, WaitLines, sparkline
from tests.terminal import read_until, screen

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
                os.killpg(program.pid, signal.SIGINT)  # as a terminal does
                interrupt_at = None
        return program.wait(60), output
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
    assert "continues without you" in [line for line in lines if line][-1]
    assert not [line for line in lines if "Traceback" in line or "KeyboardInterrupt" in line]


@pytest.mark.parametrize(("name", "value"), [("SMDDP_PROGRESS", "0"), ("TERM", "dumb")])
def test_a_live_line_can_be_turned_off(name: str, value: str) -> None:
    code, output = in_terminal(looks=40, **{name: value})
    assert code == 0
    assert b"\r\x1b[K" not in output
    assert b"step=40" in output


BEGAN = 1_800_000_000.0


class Job:
    """A job whose clock the test moves."""

    def __init__(self, **hyperparameters: str) -> None:
        self.now = BEGAN
        self.progress = ProgressLine(hyperparameters, clock=lambda: self.now)

    def status(self, status: str) -> None:
        self.progress.update(StatusChange(time=self.time, status=status, message=""))

    def logs(self, step: float | None, epoch: float | None, **metrics: float) -> None:
        for name, value in metrics.items():
            event = MetricValue(time=self.time, host="algo-1", step=step, epoch=epoch, metric=name, value=value)
            self.progress.update(event)

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.now, timezone.utc)


def test_it_says_what_is_known_so_far() -> None:
    job = Job(epochs="4")
    assert job.progress.text(100) == "waiting 0 s"
    job.status("Training")
    job.now += 65
    assert job.progress.text(100) == "Training 1:05 min"
    job.logs(step=10, epoch=0, loss=2.0, samples_per_second=812.4)
    assert job.progress.text(100) == "Training 1:05 min  epoch 0/4  step 10  loss 2  ▁  812 samples/s"


def test_the_time_left_comes_from_the_epochs_and_their_steps() -> None:
    job = Job(epochs="4")
    job.status("Training")
    for step in range(10, 110, 10):  # 50 steps an epoch, a step a second
        job.now += 10
        job.logs(step=step, epoch=step // 50, loss=1.0)
    assert "ETA 1:40 min" in job.progress.text(100)
    job.now += 40
    assert "ETA 1:00 min" in job.progress.text(100)


def test_the_time_left_comes_from_the_most_steps() -> None:
    job = Job(max_steps="100", epochs="7")
    for step in (10, 20):
        job.now += 5
        job.logs(step=step, epoch=None, loss=1.0)
    assert "step 20/100" in job.progress.text(100)
    assert "ETA 40 s" in job.progress.text(100)


def test_an_interruption_does_not_count_as_time_of_steps() -> None:
    job = Job(max_steps="100")
    for step in (10, 20):
        job.now += 5
        job.logs(step=step, epoch=None, loss=1.0)
    for status in ("Interrupted", "Starting", "Training"):
        job.now += 1000
        job.status(status)
    assert "ETA" not in job.progress.text(100)
    for step in (12, 14):
        job.now += 1
        job.logs(step=step, epoch=None, loss=1.0)
    assert "ETA 43 s" in job.progress.text(100)


def test_what_does_not_fit_is_left_out_by_its_importance() -> None:
    job = Job(epochs="4")
    job.status("Training")
    job.logs(step=10, epoch=0, loss=2.0, samples_per_second=812)
    assert job.progress.text(33) == "Training 0 s  epoch 0/4  step 10"
    assert job.progress.text(30) == "Training 0 s  step 10"


@pytest.mark.parametrize(
    ("values", "columns", "shown"),
    [
        ([1.0], 4, "▁"),
        ([5.0, 5.0], 4, "▁▁"),
        ([0.0, 7.0], 4, "▁█"),
        ([8.0, 8.0, 4.0, 4.0, 0.0, 2.0], 3, "█▄▁"),
        ([1e308, 1.7e308, 1.0], 2, "█▁"),
        ([-1.7e308, 1.7e308], 2, "▁█"),
        ([1e308] * 40, 16, "▁" * 16),
    ],
)
def test_a_sparkline_is_the_course_of_means(values: list[float], columns: int, shown: str) -> None:
    assert sparkline(values, columns) == shown


@pytest.mark.parametrize("text", ['"many"', "true", "-1", "{", "0", "Infinity", "1" * 400, "[" * 2500])
def test_hyperparameters_that_say_no_number_are_passed_over(text: str) -> None:
    job = Job(epochs=text)
    job.logs(step=1, epoch=0, loss=1.0)
    assert "epoch 0 " in job.progress.text(100)


@pytest.mark.parametrize(("name", "value", "step"), [("epochs", "10", 1e308), ("max_steps", "1e308", 2.0)])
def test_numbers_beyond_reason_show_no_time_left(name: str, value: str, step: float) -> None:
    job = Job(**{name: value})
    for at in (1.0, step):
        job.now += 60
        job.logs(step=at, epoch=1, loss=1.7e308)
        text = job.progress.text(100)
    assert "loss 1.7e+308" in text
    assert "ETA" not in text


SLOWER = "from estimators.job_handle import view; view._REFRESH_SECONDS = 0.1\n"


def shown_by(
    cell: str, directory: Path, *, interrupt_at: str | None = None, **environ: str
) -> list[tuple[str, dict[str, Any]]]:
    """Run a cell, and interrupt it once its log holds a text; return its outputs, in the order in which they came."""
    manager = KernelManager(
        transport="ipc", ip=str(directory / "kernel"), connection_file=str(directory / "kernel.json")
    )
    manager.start_kernel(env={**os.environ, **environ})
    client: BlockingKernelClient = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        request = client.execute(cell)
        outputs = []
        while True:
            message = client.get_iopub_msg(timeout=60)
            parent = message["parent_header"].get("msg_id")
            if parent != request and message["msg_type"] in ("status", "iopub_welcome"):
                continue  # of what the client asked while the kernel was slow to start
            assert parent == request, "it would be shown below another cell"
            outputs.append((message["msg_type"], message["content"]))
            if interrupt_at is not None and interrupt_at in message["content"].get("text", ""):
                manager.interrupt_kernel()
                interrupt_at = None
            if outputs[-1] == ("status", {"execution_state": "idle"}):
                return outputs
    except Empty:
        raise AssertionError("the cell does not end") from None
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("progress", ["1", "0"])
def test_a_line_above_the_log_is_written_anew_and_stays(tmp_path: Path, progress: str) -> None:
    outputs = shown_by(SLOWER + PROGRAM.replace("LOOKS", "40"), tmp_path, SMDDP_PROGRESS=progress)
    assert not [content for kind, content in outputs if kind == "error"]
    log = "".join(content["text"] for kind, content in outputs if kind == "stream")
    steps = [plain(line).split()[2] for line in log.splitlines() if "step=" in line]
    assert steps == [f"step={number}" for number in range(1, 41)]
    lines = [(kind, content) for kind, content in outputs if "display" in kind]
    if progress == "0":
        assert lines == []
        return
    assert [kind for kind, _ in lines[:2]] == ["display_data", "update_display_data"]
    assert {kind for kind, _ in lines[1:]} == {"update_display_data"}
    assert len({content["transient"]["display_id"] for _, content in lines}) == 1
    training = max((content["data"]["text/plain"] for _, content in lines), key=len)
    for part in ("Training", "epoch ", "/4", "step ", "loss ", "812 samples/s", "ETA ", "█", "▁"):
        assert part in training
    last = lines[-1][1]["data"]
    assert last["text/plain"].startswith("Completed ")
    assert last["text/html"] == f"<pre>{last['text/plain']}</pre>"


def test_an_interrupted_cell_says_that_the_job_goes_on_and_how_to_stop_it(tmp_path: Path) -> None:
    outputs = shown_by(SLOWER + PROGRAM.replace("LOOKS", "10_000"), tmp_path, interrupt_at="step=2")
    told = "".join(content["text"] for kind, content in outputs if kind == "stream" and content["name"] == "stderr")
    assert told.startswith("digits-1 continues without you. To stop it: TrainingJob.attach('digits-1').stop()")
    assert [content["ename"] for kind, content in outputs if kind == "error"] == ["KeyboardInterrupt"]


NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def show() -> None:
    view = LogView()
    view.show_name("digits-1")
    view.show_status(NOON, "Training", "Training is on")
    view.show_line("algo-1", "one [not markup] :smile:")
    view.show_line("algo-2", "  0%|  | 0/2\r 50%|# | 1/2\r100%|##| 2/2\n")


def shown(text: str) -> list[str]:
    return [line.partition(" ")[2] if line[2] == ":" else line for line in text.splitlines()]


def test_a_file_gets_plain_lines() -> None:
    file = io.StringIO()
    with redirect_stdout(file):
        show()
    assert shown(file.getvalue()) == [
        "training job digits-1",
        "Training: Training is on",
        "algo-1 | one [not markup] :smile:",
        "algo-2 | 100%|##| 2/2",
    ]


def test_a_notebook_gets_one_stream_with_a_terminals_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    stream = io.StringIO()
    with redirect_stdout(stream):
        show()
    lines = stream.getvalue().splitlines()
    assert lines[2] == "\x1b[36malgo-1 | \x1b[0mone [not markup] :smile:"


def test_a_long_line_is_wrapped_by_the_terminal_alone() -> None:
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as screen, redirect_stdout(screen):
        LogView().show_line("algo-1", "x" * 300)
        screen.flush()
        assert read_until(controller, b"\n").count(b"x") == 300
    os.close(controller)


@pytest.mark.parametrize("after", ["Training", "Completed", "MaxRuntimeExceeded"])
def test_a_status_without_a_log_tells_that_it_goes_on(after: str) -> None:
    file = io.StringIO()
    with redirect_stdout(file):
        lines = WaitLines(LogView(), every=0.02)
    others = set(threading.enumerate())
    lines.update(StatusChange(time=NOON, status="Starting", message=""))
    (teller,) = set(threading.enumerate()) - others
    deadline = time.monotonic() + 30
    while "Starting: 0 s so far" not in file.getvalue():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lines.update(StatusChange(time=NOON, status=after, message=""))
    teller.join(30)
    assert not teller.is_alive()


def test_a_reason_has_no_power_over_the_terminal() -> None:
    file = io.StringIO()
    with redirect_stdout(file):
        LogView().show_status(NOON, "Failed", "ValueError: \x1b[2J")
    assert shown(file.getvalue()) == ["Failed: ValueError: "]


def test_a_host_has_no_power_over_the_terminal() -> None:
    file = io.StringIO()
    with redirect_stdout(file):
        LogView().show_line("algo-1\x1b[2J", "one")
    assert file.getvalue() == "algo-1 | one\n"
