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


def test_a_region_that_is_no_name_of_one_is_one_line():
    done = run("local", "run", "--region", "no region!", "--", "true")
    assert done.returncode == 1
    assert done.stderr == "smddp local: region='no region!': give the name of an AWS region, such as 'us-east-1'\n"


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


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--image", "*=mine"], "are for jobs in containers: add --docker"),
        (["--docker", "--image", "mine"], "write PATTERN=IMAGE"),
        (["--docker", "--memory", "lots"], "give a whole number with b, k, m or g"),
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
