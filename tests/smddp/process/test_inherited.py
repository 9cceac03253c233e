"""A program whose parent has left it ignored or blocked signals, or closed standard streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import json, os, signal, subprocess, sys
from smddp.process.inherited import reset_inherited
reset_inherited()
opened = open(sys.argv[1], "w")
code = subprocess.call([sys.executable, "-c", "import sys; sys.stdout.flush(); sys.stderr.flush(); sys.exit(3)"])
print("a line"); print("\\udcff", file=sys.stderr); sys.stdout.flush()
ignored = [each.name for each in signal.Signals if signal.getsignal(each) == signal.SIG_IGN]
blocked = [each.name for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
read = sys.stdin.read() if sys.argv[2] == "read" else ""
json.dump([code, ignored, blocked, opened.fileno() > 2, read], opened)
"""


def leave_signals() -> None:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell's job in the background ignores it
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGWINCH])


def run(*words: str | Path, leave: Callable[[], object], **environ: str) -> subprocess.CompletedProcess[str]:
    """Run this Python after `leave` has run in its process."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        preexec_fn=leave,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_only_what_breaks_a_program_is_reset(tmp_path: Path) -> None:
    ended = run("-c", PROGRAM, tmp_path / "found", "no", leave=leave_signals)
    assert (ended.returncode, ended.stdout) == (0, "a line\n")
    found = json.loads((tmp_path / "found").read_text())
    assert found == [3, ["SIGHUP", "SIGINT", "SIGPIPE", "SIGXFSZ"], ["SIGWINCH"], True, ""]


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 2], [0, 1, 2]], ids=str)
def test_a_closed_stream_is_the_null_device_and_no_other_file_gets_its_number(
    tmp_path: Path, closed: list[int]
) -> None:
    ended = run(
        *("-c", PROGRAM, tmp_path / "found", "read" if 0 in closed else "no"),
        leave=lambda: [os.close(number) for number in closed],
    )
    assert (ended.returncode, ended.stdout) == (0, "" if 1 in closed else "a line\n")
    code, _, _, has_own_number, read = json.loads((tmp_path / "found").read_text())
    assert (code, has_own_number, read) == (3, True, "")


FAILS = "import sys; print('said'); sys.exit(3)"


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "smddp.cli", "run", "train.py"),
        ("-m", "smddp.launch.torchrun", "train.py"),
        ("-m", "smddp.container.init", sys.executable, "train.py"),
        ("-m", "smddp.container.job_process", "train.sh"),
    ],
    ids=lambda words: words[1],
)
@pytest.mark.parametrize("way", ["signals", "streams"])
def test_a_failure_stays_one(words: tuple[str, ...], way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(FAILS)
    Path("train.sh").write_text("#!/bin/sh\necho said\nexit 3\n")
    Path("train.sh").chmod(0o755)
    leave = leave_signals if way == "signals" else lambda: [os.close(number) for number in range(3)]
    ended = run(*words, leave=leave, SMDDP_WARM="0", PYTHONPATH=str(Path(__file__).parents[3]))
    assert (ended.returncode, ended.stdout) == (3, "said\n" if way == "signals" else ""), ended.stderr
