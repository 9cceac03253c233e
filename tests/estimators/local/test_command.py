import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SMDDP = str(Path(sys.executable).with_name("smddp"))
LIST_BUCKETS = """if True:
    import boto3, os
    print(boto3.client("s3").list_buckets()["Buckets"][0]["Name"], os.environ.get("AWS_USE_FIPS_ENDPOINT"))
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SMDDP, *arguments], env={**os.environ, **environment}, capture_output=True, text=True)


def test_runs_a_program_against_a_platform_of_its_own():
    done = run(
        *("local", "run", "--region", "eu-west-1", "--", sys.executable, "-c", LIST_BUCKETS),
        AWS_USE_FIPS_ENDPOINT="true",
        AWS_PROFILE="no-such-profile",
    )
    assert done.stdout.split() == ["sagemaker-eu-west-1-123456789012", "None"]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_passes_the_programs_exit_code_on(script, code):
    assert run("local", "run", "--", "sh", "-c", script).returncode == code


def test_passes_sigterm_on():
    script = "trap 'exit 42' TERM; echo up; sleep 60 & wait"
    process = subprocess.Popen([SMDDP, "local", "run", "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(30) == 42
    process.stdout.close()


def test_a_program_that_there_is_not_is_one_line():
    done = run("local", "run", "--", "no-such-program")
    assert done.stderr == "smddp local: no-such-program: No such file or directory\n"
    assert done.returncode == 1


def test_a_platform_that_cannot_start_is_one_line(tmp_path):
    (tmp_path / "moto.py").write_text("raise ModuleNotFoundError(\"No module named 'moto'\", name='moto')\n")
    done = run("local", "run", "--", "true", PYTHONPATH=str(tmp_path))
    assert done.stderr.count("\n") == 1
    assert "pip install 'smddp[local]'" in done.stderr
    assert done.returncode == 1


@pytest.mark.seaweedfs
def test_stays_up_until_it_is_told_to_stop(tmp_path):
    """What it prints, put into a shell, leads any program to it; objects are kept in the directory."""
    process = subprocess.Popen(
        [SMDDP, "local", "up", "--directory", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "AWS_USE_FIPS_ENDPOINT": "true"},
    )
    assert process.stdout is not None
    lines = []
    while not lines or "role" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    printed = "".join(lines)
    assert re.search(r"http://127\.0\.0\.1:\d+", lines[0])
    client = f"{printed}\n{shlex.join([sys.executable, '-c', LIST_BUCKETS])}"
    assert subprocess.run(
        ["sh", "-c", client], capture_output=True, text=True, env={**os.environ, "AWS_USE_FIPS_ENDPOINT": "true"}
    ).stdout.split() == ["sagemaker-us-east-1-123456789012", "None"]
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    process.stdout.close()
    assert [path.name for path in tmp_path.iterdir()] == ["storage"]
