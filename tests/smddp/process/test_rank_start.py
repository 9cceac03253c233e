import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smddp.process import rank_start
from smddp.process.heartbeat import Heartbeat
from smddp.process.rank_start import RankStart

RANK = (
    "import signal, sys; sys.stdin.readline(); signal.signal(signal.SIGTERM, print); print(flush=True); "
    "sys.stdin.readline()"
)


def test_the_start_is_told_until_each_rank_has_its_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(rank_start, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(rank_start, "Heartbeat", lambda what, most: Heartbeat(what, most=most, every=0.02))
    launched = dict.fromkeys(("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "RANK"), "0")
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK],
        env=os.environ | launched,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert rank.stdin is not None
    assert rank.stdout is not None
    script = tmp_path / "train.py"
    script.write_text("import torch")
    with RankStart(script) as start:
        start.look()
        time.sleep(0.1)
        assert caplog.messages == []  # such a script never shows that it has begun
    script.write_text("import smddp")
    with rank, RankStart(script) as start:
        start.look()
        while not caplog.messages:
            time.sleep(0.01)
        rank.stdin.write("\n")
        rank.stdin.flush()
        rank.stdout.readline()
        start.look()
        time.sleep(0.1)  # a line under way
        told = list(caplog.messages)
        time.sleep(0.1)
        assert caplog.messages == told
        rank.send_signal(signal.SIGKILL)
