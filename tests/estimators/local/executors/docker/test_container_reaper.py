"""The process that removes a cluster's containers, with a Docker that can't do all it is asked for."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from estimators.docker.docker_program import bind
from estimators.local.executors.docker import container_reaper as reaper


def run_main(
    tmp_path: Path, script: str, word: bytes = b"", seconds: int = 0, owner: tuple[str, ...] = (), **constants: float
) -> list[str]:
    """What it says, with a shell script as Docker, which works in a directory of its own."""
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
    docker.chmod(0o755)
    settings = "".join(f"reaper.{name} = {value}\n" for name, value in constants.items())
    program = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('reaper', {reaper.__file__!r})\n"
        "reaper = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(reaper)\n"
        f"{settings}"
        f"reaper.main({str(docker)!r}, 'cluster', '{seconds}', *{owner!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=word, capture_output=True, check=True, timeout=60, cwd=tmp_path
    )
    return done.stdout.decode().splitlines()


LISTS_ONE = '[ "$1" = ps ] && [ -e made ] && echo one; [ "$1" = rm ] && rm made; exit 0'


def test_it_tries_again_until_docker_is_there(tmp_path: Path) -> None:
    (tmp_path / "made").touch()
    away = f"echo >> asked; [ $(wc -l < asked) -lt 4 ] && exit 1; {LISTS_ONE}"
    assert run_main(tmp_path, away, _FIRST_PAUSE_SECONDS=0.01) == ["removed"]
    assert not (tmp_path / "made").exists()


def test_a_failed_command_is_one_if_the_parent_ignored_its_children(tmp_path: Path) -> None:
    earlier = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        (said,) = run_main(tmp_path, "exit 1", _FIRST_PAUSE_SECONDS=0.01, _LONGEST_SECONDS=0.1)
    finally:
        signal.signal(signal.SIGCHLD, earlier)
    assert said == "Docker has not removed the containers of cluster within 0.1 seconds"


def test_it_does_not_say_that_something_is_removed_that_is_not(tmp_path: Path) -> None:
    (said,) = run_main(tmp_path, "exit 1", _FIRST_PAUSE_SECONDS=0.01, _LONGEST_SECONDS=0.1)
    assert said == "Docker has not removed the containers of cluster within 0.1 seconds"


def test_what_docker_may_make_too_late_is_removed(tmp_path: Path) -> None:
    late = f"echo >> asked; [ $(wc -l < asked) = 5 ] && touch made; {LISTS_ONE}"
    said = run_main(tmp_path, late, b"?", _FIRST_PAUSE_SECONDS=0.01, _LATE_SECONDS=3)
    assert said == ["removed"]
    assert len((tmp_path / "asked").read_text()) > 5
    assert not (tmp_path / "made").exists()


def test_a_docker_that_hangs_is_given_up_and_asked_again(tmp_path: Path) -> None:
    (tmp_path / "made").touch()
    hangs = f"[ -e asked ] || {{ touch asked; exec sleep 50; }}; {LISTS_ONE}"
    said = run_main(tmp_path, hangs, _FIRST_PAUSE_SECONDS=0.01, _COMMAND_SECONDS=0.5)
    assert said == ["removed"]


def test_what_runs_yet_gets_its_time_to_end(tmp_path: Path) -> None:
    (tmp_path / "made").touch()
    assert run_main(tmp_path, f'echo "$@" >> asked; {LISTS_ONE}', seconds=7) == ["removed"]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked.index("stop --time 7 one") < asked.index("rm --force --volumes one")


@pytest.mark.parametrize(
    ("fails", "said"), [("find", reaper.HANDED_OVER), ("chown", "it fails"), ("no", "handed over")]
)
def test_what_a_user_does_to_directories_of_theirs_fails_no_job(tmp_path: Path, fails: str, said: str) -> None:
    mine = (bind('/mine, "target=/roots/1', f"{reaper.SHARED}/0"), bind("/data", f"{reaper.SHARED}/1"))
    owner = ("7:7", "image", bind("/job", f"{reaper.ROOTS}/0"), *mine)
    docker = f'echo "$@" >> asked; case "$*" in *--entrypoint\\ {fails}*) echo it fails >&2; exit 1;; esac'
    assert run_main(tmp_path, docker, owner=owner) == ["removed", said]
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("run ")]
    seen = [[place for place in ("/job", "/mine", "/data") if place in line] for line in asked]
    assert seen == [["/job"], ["/mine"], ["/data"]]
