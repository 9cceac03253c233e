import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SMDDP = str(Path(sys.executable).with_name("smddp"))
LIST_BUCKETS = """if True:
    import boto3, os
    print(boto3.client("s3").list_buckets()["Buckets"][0]["Name"], os.environ.get("AWS_USE_FIPS_ENDPOINT"))
"""


FOREIGN = {**os.environ, "AWS_USE_FIPS_ENDPOINT": "true"}
"""An environment that leads elsewhere."""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SMDDP, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_runs_a_program_against_a_platform_of_its_own():
    done = run(
        "local",
        "run",
        "--region",
        "eu-west-1",
        "--",
        sys.executable,
        "-c",
        LIST_BUCKETS,
        AWS_USE_FIPS_ENDPOINT="true",
        AWS_PROFILE="no-such-profile",
    )
    assert done.stdout.split() == ["sagemaker-eu-west-1-123456789012", "None"]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
@pytest.mark.slow
def test_passes_the_programs_exit_code_on(script, code):
    assert run("local", "run", "--", "sh", "-c", script).returncode == code


def test_what_stands_before_the_program_is_for_the_platform():
    done = run("local", "run", "--bogus", "--", "echo", "hi")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such option: --bogus" in done.stderr


@pytest.mark.slow
def test_what_stands_after_the_program_is_the_programs():
    assert run("local", "run", "echo", "--region", "x").stdout == "--region x\n"


@pytest.mark.slow
def test_passes_sigterm_on():
    script = "trap 'exit 42' TERM; echo up; sleep 60 & wait"
    process = subprocess.Popen([SMDDP, "local", "run", "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(30) == 42
    process.stdout.close()


@pytest.mark.slow
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


def test_a_region_that_is_no_name_of_one_is_one_line():
    done = run("local", "run", "--region", "no region!", "--", "true")
    assert done.returncode == 1
    assert done.stderr == "smddp local: region='no region!': give the name of an AWS region, such as 'us-east-1'\n"


@pytest.mark.parametrize("command", ["up", "env"])
@pytest.mark.parametrize("name", ["", "file"])
def test_a_directory_that_is_none_is_refused(tmp_path, command, name):
    file = tmp_path / "file"
    file.touch()
    done = run("local", command, "--directory", str(file) if name else "", COLUMNS="200")
    assert done.returncode == 2
    assert ("file is no directory. Give" if name else "It is empty. Give") in done.stderr


def test_a_directory_that_cannot_be_made_is_one_line_with_what_to_do():
    done = run("local", "up", "--directory", "/proc/none")
    assert done.returncode == 1
    why = "the platform can't work in /proc/none: No such file or directory"
    assert done.stderr == f"smddp local: {why}. Choose another --directory.\n"


@contextmanager
def up(directory: Path) -> Iterator[list[str]]:
    """A platform of ``smddp local up``, and the lines that it printed; Ctrl-C ends it."""
    process = subprocess.Popen(
        [SMDDP, "local", "up", "--directory", str(directory)], stdout=subprocess.PIPE, text=True, env=FOREIGN
    )
    assert process.stdout is not None
    lines = []
    try:
        while not lines or "role" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        yield lines
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def in_shell(script: str) -> list[str]:
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, env=FOREIGN, check=True).stdout.split()


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_stays_up_until_it_is_told_to_stop_and_comes_back_where_it_was(tmp_path):
    """What it prints, put into a shell, leads any program to it; objects are kept in the directory."""
    client = shlex.join([sys.executable, "-c", LIST_BUCKETS])
    with up(tmp_path) as lines:
        assert re.search(r"http://127\.0\.0\.1:\d+", lines[0])
        assert lines[2].startswith('eval "$(smddp local env')
        evaluated = "".join(lines).replace("$(smddp", f"$({SMDDP}")
        assert in_shell(f"{evaluated}\n{client}") == ["sagemaker-us-east-1-123456789012", "None"]
        place = ("--directory", str(tmp_path))
        assert run("local", "chaos", *place).stdout == "no fault is set\n"
        told = run("local", "chaos", *place, "throttle", "on=s3:PUT", "count=3", "reclaim", "step=20").stdout
        assert told == "throttle on=s3:PUT count=3: met 0 times\nreclaim step=20: met 0 times\n"
        refused = run("local", "chaos", *place, "reclaim", "steps=20")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == "smddp local: Faults: reclaim has no steps=. Did you mean 'step'?\n"
        exports = run("local", "env", "--directory", str(tmp_path), AWS_USE_FIPS_ENDPOINT="true").stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["access", "records", "storage"]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (tmp_path / "access").iterdir()} == {0}
    gone = run("local", "env", "--directory", str(tmp_path))
    assert (gone.returncode, gone.stdout) == (1, "")
    assert f"no platform runs on {tmp_path}" in gone.stderr
    with up(tmp_path):  # a shell that was told before need not be told again; nothing goes wrong any more
        assert run("local", "chaos", *place).stdout == "no fault is set\n"
        assert in_shell(f"{exports}\n{client}") == ["sagemaker-us-east-1-123456789012", "None"]


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_a_platform_whose_server_was_killed_ends_with_a_reason(tmp_path):
    process = subprocess.Popen(
        [SMDDP, "local", "up", "--directory", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("# SageMaker")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (server,) = (int(child) for child in children if b"local.serve" in Path(f"/proc/{child}/cmdline").read_bytes())
    os.kill(server, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.startswith("smddp local: The local platform's server has ended, and with it all jobs")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--image", "*=mine"], "are for jobs in containers: add --docker"),
        (["--docker", "--image", "mine"], "write PATTERN=IMAGE"),
        (["--docker", "--memory", "lots"], "give a whole number with b, k, m or g"),
        (["--partition", "gpu"], "are for jobs on Slurm: add --slurm SHARED"),
        (["--slurm", "no-such"], "give the absolute path of a directory that all nodes share"),
        (["--slurm", "/tmp", "--docker"], "jobs run in containers here, or on Slurm; give one of them"),
    ],
)
def test_options_of_containers_that_mean_nothing_are_refused(options, reason):
    done = run("local", "run", *options, "--", "true", COLUMNS="200")
    assert done.returncode == 2
    assert reason in done.stderr


@pytest.mark.docker
def test_jobs_run_in_containers_if_that_is_asked_for():
    create = """if True:
        import boto3
        try:
            boto3.client("sagemaker").create_training_job(
                TrainingJobName="job", RoleArn="arn:aws:iam::123456789012:role/r",
                AlgorithmSpecification={"TrainingImage": "jobs/image:1", "TrainingInputMode": "File"},
                OutputDataConfig={"S3OutputPath": "s3://bucket/out"},
                ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
                StoppingCondition={"MaxRuntimeInSeconds": 60})
        except Exception as error:
            print(error)
    """
    options = ["--docker", "--image", "jobs/*=no-such-image:1", "--cpus", "0.5", "--memory", "1g"]
    done = run("local", "run", *options, "--", sys.executable, "-c", create)
    assert "jobs/image:1 is mapped (by 'jobs/*') to no-such-image:1" in done.stdout
