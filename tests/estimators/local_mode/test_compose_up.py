"""The program in Compose's place, with programs that only seem to be Docker and Compose."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from estimators.local_mode.directory import Instructions, JobDirectory

NEVER_STARTS = """#!/bin/sh
case "$*" in
*" up "*)
  trap 'echo interrupted >> {told}; kill $!; exit 1' INT
  sleep 60 > /dev/null 2>&1 &
  echo up >> {told}
  wait;;
esac
"""
NO_CONTAINERS = """#!/bin/sh
case "$1" in
events) exec sleep 60;;
ps) {ps};;
network) echo network "$2" >> {told};;
esac
"""

DIES = """#!/bin/sh
touch {running}; echo read timeout >&2; exit 3
"""
A_CONTAINER = """#!/bin/sh
case "$1" in
events) exec sleep 60;;
ps) case "$*" in *--all*) echo 1234;; *) [ ! -e {running} ] || echo 1234 algo-1;; esac;;
inspect) [ -e {running} ] && runs=true || runs=false
  echo '[{{"State": {{"Status": "exited", "ExitCode": 75, "OOMKilled": false, "FinishedAt": "1", "Running": '$runs'}},
  "Config": {{"Labels": {{"smddp.local-mode.host": "algo-1"}}}}}}]';;
*) echo "$*" >> {told}; [ "$1" != stop ] || rm {running};;
esac
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def job(tmp_path: Path) -> JobDirectory:
    """A job of one host, as the SDK leaves it when it calls Compose."""
    directory = JobDirectory.make(str(tmp_path))
    root = directory.containers / "tmp1"
    config = root / "algo-1-abcde" / "input" / "config"
    config.mkdir(parents=True)
    (config / "resourceconfig.json").write_text(json.dumps({"hosts": ["algo-1-abcde"]}))
    (root / "docker-compose.yaml").write_text("services: {}\n")
    return directory


@pytest.fixture
def start(job: JobDirectory, tmp_path: Path) -> Iterator[Start]:
    """Starts the program, whose Compose pulls an image for ever."""
    started = []

    def of(
        fit_process: int, ps: str = ":", *, compose: str = NEVER_STARTS, docker: str = NO_CONTAINERS
    ) -> subprocess.Popen[bytes]:
        instructions = Instructions(
            fit_process=fit_process,
            image="mine",
            checkpoints=None,
            checkpoint_path="/opt/ml/checkpoints",
            shared_memory=None,
            ends_with_first_host=False,
            shows_log=True,
        )
        job.instruct(instructions)
        places = {"told": tmp_path / "told", "running": tmp_path / "running", "ps": ps}
        programs = {"compose": compose.format(**places), "docker": docker.format(**places)}
        for name, text in programs.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        program = "import sys; from estimators.local_mode import compose_up; compose_up.AWAY_SECONDS = 2\n"
        program += "sys.exit(compose_up.main(sys.argv[1:]))"
        file = job.containers / "tmp1" / "docker-compose.yaml"
        command = [sys.executable, "-c", program, str(tmp_path / "compose"), "--", "-f", str(file), "up", "--build"]
        path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path}
        started.append(subprocess.Popen(command, env=environment, preexec_fn=_as_in_the_background))
        return started[-1]

    yield of
    for process in started:
        process.kill()
        process.wait()


def _as_in_the_background() -> None:
    """As a shell starts ``python train.py &``: Ctrl-C is for others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_up(told: Path) -> bool:
    return told.exists() and "up\n" in told.read_text()


@pytest.mark.parametrize("ps", [":", "exit 1"], ids=["nothing runs", "docker is out of order"])
def test_a_stop_before_any_container_runs_ends_compose(
    job: JobDirectory, start: Start, tmp_path: Path, ps: str
) -> None:
    process = start(os.getpid(), ps)
    wait_for(lambda: is_up(tmp_path / "told"))
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: process.poll() is not None)
    assert (tmp_path / "told").read_text().split()[:2] == ["up", "interrupted"]
    if ps == ":":
        assert job.outcome is not None
        assert job.outcome.status == "Stopped"


def test_a_fit_that_was_gone_before_the_start_is_noticed_and_nothing_is_left(
    job: JobDirectory, start: Start, tmp_path: Path
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    process = start(gone.pid)
    wait_for(lambda: process.poll() is not None)
    assert (tmp_path / "told").read_text().splitlines() == ["up", "interrupted", "network ls"]
    assert not job.path.exists()


def test_hosts_that_outlive_compose_get_their_time_before_they_are_removed(
    job: JobDirectory, start: Start, tmp_path: Path
) -> None:
    process = start(os.getpid(), compose=DIES, docker=A_CONTAINER)
    wait_for(lambda: process.poll() is not None)
    commands = [line.split() for line in (tmp_path / "told").read_text().splitlines()]
    assert [command[:3] for command in commands[:2]] == [["stop", "--time", "120"], ["rm", "--force", "--volumes"]]
    assert job.outcome is not None
    assert job.outcome.status == "Failed"
    assert "Docker Compose ended with 3 while algo-1 ran" in job.outcome.reason
    assert "read timeout" in job.outcome.reason


def test_sighup_is_a_stop_too(job: JobDirectory, start: Start, tmp_path: Path) -> None:
    process = start(os.getpid())
    wait_for(lambda: is_up(tmp_path / "told"))
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: process.poll() is not None)
    assert (tmp_path / "told").read_text().splitlines() == ["up", "interrupted", "network ls"]
    assert job.outcome is not None
    assert job.outcome.status == "Stopped"


def test_an_engine_that_is_gone_is_the_failure(job: JobDirectory, start: Start) -> None:
    process = start(os.getpid(), "echo no engine >&2; exit 1", compose=DIES)
    wait_for(lambda: process.poll() is not None)
    assert job.outcome is not None
    assert (job.outcome.status, "no engine" in job.outcome.reason) == ("Failed", True)


def test_a_closed_terminal_does_not_end_the_program(start: Start, tmp_path: Path) -> None:
    process = start(os.getpid())
    wait_for(lambda: is_up(tmp_path / "told"))
    assert os.getsid(process.pid) == process.pid
