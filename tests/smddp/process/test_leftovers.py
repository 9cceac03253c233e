"""Processes that outlive the program which started them, below a process of the test's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from smddp.process.process_tree import started

DEAF_DAEMON = """
import os, signal, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1], "w").close())
print(os.getpid(), flush=True)
os.close(1)
while True:
    signal.pause()
"""

LAUNCHER = """
import signal, subprocess, sys, time
from pathlib import Path
from smddp.process import leftovers
send = leftovers._signal

def send_and_wait(processes, signum):
    send(processes, signum)
    while signum == signal.SIGTERM and not Path(sys.argv[2]).exists():  # however late the daemon gets a core
        time.sleep(0.01)

leftovers._signal, leftovers.LEFTOVER_GRACE, leftovers.PATIENCE_SECONDS = send_and_wait, 0.5, 30.0
before = subprocess.Popen(["sleep", "60"])
left = leftovers.Leftovers()
subprocess.run(["sh", "-c", "sleep 0.1 & exit 0"], check=True)  # it ends by itself, and is not worth a line
left.end(print)
leftovers.PATIENCE_SECONDS = 0.5
daemon = subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]], check=True, stdout=subprocess.PIPE)
print(daemon.stdout.decode().strip())
left.end(print)
print(before.poll())
before.kill()
"""


def test_a_deaf_daemon_is_told_of_and_ended_and_what_was_there_before_is_left_alone(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    command = [sys.executable, "-c", LAUNCHER, DEAF_DAEMON, str(heard)]
    daemon, line, before = subprocess.check_output(command, text=True, timeout=60).splitlines()
    assert line.startswith(f"Left behind by the programs that ran here: {daemon} ({sys.executable} -c). Ending")
    assert heard.exists(), "it was not asked to end before it was killed"
    assert started(int(daemon)) is None
    assert before == "None"
