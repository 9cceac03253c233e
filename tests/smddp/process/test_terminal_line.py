"""The live line in a real terminal: a script runs on one side of a pty, a small screen reads the other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from smddp.process.terminal_line import TerminalLine
from tests.fork_python import ForkPython
from tests.terminal import read_until, screen

SCRIPT = """
import logging, os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import TensorDataset
import smddp

def main(job):
    torch.manual_seed(1)
    model = nn.Linear(1, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.01), log_every=4, **OPTIONS)
    loader = trainer.loader(TensorDataset(torch.ones(64, 1)), batch_size=4, num_workers=WORKERS)
    for epoch in trainer.epochs(2):
        for (x,) in trainer.batches(loader):
            trainer.step(trainer.model(x).square().mean())
            time.sleep(0.02)
            if trainer.steps == 10:
                print("the script's own line")
                print("half", end="")
                time.sleep(0.4)
                print(" and half")
            AT_EACH_STEP
    print("the end")

smddp.run(main)
"""


def run_in_terminal(
    tmp_path: Path,
    *,
    columns: int = 100,
    at_each_step: str = "pass",
    options: str = "{}",
    workers: int = 0,
    launcher: tuple[str, ...] = (),
    **environ: str,
) -> tuple[int, list[str], list[str], bytes]:
    script = tmp_path / "script.py"
    text = SCRIPT.replace("OPTIONS", options).replace("AT_EACH_STEP", at_each_step).replace("WORKERS", str(workers))
    script.write_text(text)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, *launcher, str(script)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "SMDDP_RUN_DIR": str(tmp_path / "run"), "TERM": "xterm", "OMP_NUM_THREADS": "1", **environ},
    )
    os.close(theirs)
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:  # EIO: the other side is closed
        pass
    finally:
        os.close(ours)
    return process.wait(timeout=30), *screen(output), output


@pytest.mark.parametrize("columns", [40, 100])
def test_printed_and_logged_lines_come_whole_above_the_live_line(
    columns: int, tmp_path: Path, fork_python: ForkPython
) -> None:
    code, lines, live, output = run_in_terminal(tmp_path, columns=columns, workers=1)
    assert code == 0, lines
    shown = [line for line in live if line.startswith("epoch ")]
    assert any("step 7/32" in line or "step 10/32" in line or "step 20/32" in line for line in shown), shown
    assert max(map(len, shown)) < columns
    assert [line for line in lines if "own line" in line or "half" in line or "the end" in line] == [
        "the script's own line",
        "half and half",
        "the end",
    ]
    metric_lines = [line for line in lines if re.match(r"\d\d:\d\d:\d\d step=", line) and "goodput=" not in line]
    assert len(metric_lines) == 8
    assert all(" samples_per_second=" in line for line in metric_lines)
    assert not any("epoch " in line and "step " in line for line in lines), "a live line was left"
    assert b"\x1b[?25l" not in output  # the cursor is never hidden


def test_a_terminal_without_control_sequences_gets_none(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys\nfrom smddp.process.terminal_line import make_room_for_other_process\n"
        "make_room_for_other_process()\nprint('a line')\n"
    )
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], stdout=theirs, env={**os.environ, "TERM": "dumb"}, check=True
    )
    assert read_until(ours, b"\n") == b"a line\r\n"
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("at_each_step", "code", "last"),
    [
        ("if trainer.steps == 12: raise ZeroDivisionError('as wanted')", 1, "ZeroDivisionError: as wanted"),
        ("if trainer.steps == 12: os.kill(os.getpid(), signal.SIGTERM)", 75, "exit code 75"),
        ("if trainer.steps == 12: os.kill(os.getpid(), signal.SIGINT)", 130, ""),
    ],
)
def test_the_terminal_is_left_clean_however_the_run_ends(
    at_each_step: str, code: int, last: str, tmp_path: Path, fork_python: ForkPython
) -> None:
    ended, lines, live, _ = run_in_terminal(tmp_path, at_each_step=at_each_step)
    assert ended == code, lines
    assert any("step " in line for line in live)
    assert not any(line.startswith("epoch ") for line in lines)
    assert any(last in line for line in lines)


@pytest.mark.parametrize("how", [{"options": "dict(progress=False)"}, {"SMDDP_PROGRESS": "0"}, {"TERM": "dumb"}])
def test_it_can_be_turned_off(how: dict[str, str], tmp_path: Path, fork_python: ForkPython) -> None:
    code, lines, live, _ = run_in_terminal(tmp_path, **how)  # type: ignore[arg-type]
    assert code == 0
    assert not any("step " in line for line in live)
    assert "the end" in lines


@pytest.mark.slow
def test_lines_of_another_rank_come_whole_too(tmp_path: Path, fork_python: ForkPython) -> None:
    at_each_step = "if job.cluster.rank == 1: print('rank 1', 'at step', trainer.steps)"
    code, lines, live, _ = run_in_terminal(
        tmp_path, at_each_step=at_each_step, launcher=("-m", "smddp.cli", "run", "--processes-per-node", "2")
    )
    assert code == 0, lines
    assert any(line.startswith("epoch ") for line in live)
    told = [line for line in lines if "rank 1 at step" in line]
    assert told == [f"rank 1 at step {step}" for step in range(1, 33)]


def test_a_text_that_fails_is_an_empty_line_until_it_succeeds_again() -> None:
    ours, theirs = pty.openpty()
    texts = iter(["before", OverflowError("a number beyond reason"), ValueError("another"), "after"])

    def text(columns: int) -> str:
        said = next(texts, "after")
        if isinstance(said, Exception):
            raise said
        return said

    with os.fdopen(theirs, "w") as terminal:
        line = TerminalLine(text, terminal)
        assert line.start()
        output = b""
        while b"after\r" not in output:
            output += os.read(ours, 4096)
        line.stop()
    os.close(ours)
    assert output.startswith(b"\r\x1b[Kbefore\r\r\x1b[K\r\r\x1b[K\r\r\x1b[Kafter\r")


LOGS_WHILE_IT_COMES_AND_GOES = """
import logging, sys, threading
from smddp.process.terminal_line import TerminalLine
logging.basicConfig(level=logging.DEBUG)

def fail(columns):
    raise ValueError  # which is logged, too

def log():
    while not done.is_set():
        logging.info("a line")

done = threading.Event()
threads = [threading.Thread(target=log) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(300):
    line = TerminalLine(fail, sys.stderr)
    line.start()
    line.stop()
done.set()
for thread in threads:
    thread.join()
"""


def test_who_logs_and_who_stops_the_line_never_wait_for_each_other() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", LOGS_WHILE_IT_COMES_AND_GOES], stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        threading.Thread(target=read_all, args=(ours,), daemon=True).start()
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()


def read_all(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass
