"""A submit script becomes a batch script that Slurm runs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smddp.cli.app import app
from tests.slurm import SlurmCluster

SUBMIT = """
from dataclasses import dataclass, field
from pathlib import Path
from estimators import Estimator

@dataclass
class Config:
    name: str = "it's"
    rate: float = 1e-3
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    amp: bool = False

print("about to send")
Estimator(
    "train.py",
    source_dir="code",
    instance_type="ml.g5.12xlarge",
    instance_count={hosts},
    distribution={distribution!r},
    hyperparameters=Config(),
    environment={{{variable!r}: "good day; $HOME"}},
    base_job_name="first try",
    max_run=600,
    {more}
).fit({inputs})
raise SystemExit("it was sent")
"""

TRAIN = """
import os
import sys
from dataclasses import dataclass
import smddp

@dataclass
class Config:
    name: str
    rate: float
    sizes: list[int]
    amp: bool

def main(config: Config, job: smddp.Job):
    c = job.cluster
    line = f"{c.rank}/{c.world_size} {config} {os.environ.get('SM_CHANNEL_TRAINING')} {os.environ['GREETING']}\\n"
    sys.stdout.write(line)

smddp.run(main)
"""


COMMENT = '--comment=it\'s "two" words # a\\b'


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_send_again: None):
    """Calls ``smddp sbatch`` on a submit script of such a job."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    (tmp_path / "digits").mkdir()

    def run(*options, inputs="{'training': 's3://bucket/digits'}", **given):
        submit = tmp_path / "submit.py"
        defaults = {"distribution": "torchrun", "hosts": 2, "variable": "GREETING", "more": ""}
        submit.write_text(SUBMIT.format(inputs=inputs, **{**defaults, **given}))
        return CliRunner().invoke(app, ["sbatch", "submit.py", *options])

    return run


@pytest.mark.slurm
@pytest.mark.usefixtures("fork_python")
@pytest.mark.slow
def test_slurm_trains_what_the_submit_script_would_send(slurm: SlurmCluster, sbatch, tmp_path: Path) -> None:
    written = sbatch(
        "--channel", "training=digits", "--run-dir", "run", "--", "--partition=low", "--exclusive", COMMENT
    )
    assert written.exit_code == 0, written.stderr
    assert "about to send" in written.stderr
    (tmp_path / "train.sbatch").write_text(written.stdout)
    job = slurm.run("sbatch", "--parsable", "--output", str(tmp_path / "log"), str(tmp_path / "train.sbatch")).strip()
    slurm.await_state(job, "COMPLETED", "FAILED")
    shown = slurm.run("scontrol", "show", "job", job)
    for expected in (
        'Comment=it\'s "two" words # a\\b',
        "JobName=first-try",
        "TimeLimit=00:10:00",
        "NumNodes=2",
        "Partition=low",
        "JobState=COMPLETED",
    ):
        assert expected in shown, (tmp_path / "log").read_text()
    config = 'Config(name="it\'s", rate=0.001, sizes=[1, 2], amp=False)'
    lines = [f"{rank}/2 {config} {tmp_path}/digits good day; $HOME" for rank in range(2)]
    deadline = time.monotonic() + 60  # what srun has shown may come after the job's end
    while sorted(line for line in (tmp_path / "log").read_text().splitlines() if "/2 " in line) != lines:
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.1)
    assert (tmp_path / "run").is_dir()


def test_the_script_asks_slurm_for_what_the_job_asks_for(sbatch) -> None:
    mpi = {"mpi": {"enabled": True, "processes_per_host": 4}}
    written = sbatch(
        "--", "--gpus-per-node=4", distribution=mpi, inputs="", more='checkpoint_s3_uri="s3://bucket/run-7",'
    ).stdout
    assert written.splitlines()[1] == (
        "# Written by smddp sbatch from submit.py: what it would train on 2 × ml.g5.12xlarge."
    )
    for line in ("#SBATCH --nodes=2", "#SBATCH --time=10", "#SBATCH --signal=TERM@120", "#SBATCH --gpus-per-node=4"):
        assert line in written.splitlines()
    assert "--processes-per-node 4" in written
    assert "--checkpoint-s3-uri s3://bucket/run-7" in written
    assert subprocess.run(["bash", "-n"], input=written, text=True, check=False).returncode == 0


def test_what_the_shell_itself_reads_is_set_for_the_command_alone(sbatch) -> None:
    for name in ("PATH", "UID", "GROUPS", "BASH_ENV", "LD_PRELOAD", "SLURM_JOB_ID"):
        written = sbatch(inputs="", variable=name).stdout
        assert f"  env '{name}=good day" in written
        assert f"export {name}=" not in written


VARIABLE = "__import__('sagemaker.workflow.parameters').workflow.parameters.ParameterInteger"


def test_a_pipelines_variable_has_its_default(sbatch, caplog: pytest.LogCaptureFixture) -> None:
    written = sbatch(inputs="", hosts=f"{VARIABLE}('Hosts', 3)")
    assert "#SBATCH --nodes=3" in written.stdout.splitlines()
    assert "instance_count: is a pipeline's variable, Hosts" in caplog.text


def test_a_run_directory_in_s3_is_refused(sbatch) -> None:
    refused = sbatch("--run-dir=s3://bucket/run", inputs="")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "is no directory: give one that all nodes see" in refused.stderr


@pytest.mark.usefixtures("fork_python")
def test_bash_gives_the_job_each_channel_by_its_name(sbatch, tmp_path: Path) -> None:
    code = "from smddp.job import Job\nprint('channels', sorted(Job.detect().channels.items()), flush=True)\n"
    (tmp_path / "code" / "train.py").write_text(code)
    directories = {"train-data": "a b", "valid.v2": "$HOME", "testSet": "x';touch PWN;'"}
    for directory in directories.values():
        (tmp_path / directory).mkdir()
    options = [f"--channel={name}={directory}" for name, directory in directories.items()]
    inputs = str(dict.fromkeys(directories, "s3://bucket/digits"))
    written = sbatch(*options, inputs=inputs, distribution=None, hosts=1)
    assert written.exit_code == 0, written.stderr
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text('#!/bin/bash\nexec "$@"\n')
    srun.chmod(0o755)
    ended = subprocess.run(
        ["bash"],
        input=written.stdout,
        text=True,
        capture_output=True,
        check=False,
        env={**os.environ, "PATH": f"{srun.parent}:{os.environ['PATH']}"},
    )
    expected = sorted((name, tmp_path / directory) for name, directory in directories.items())
    assert f"channels {expected}" in ended.stdout, ended.stderr
    assert "identifier" not in ended.stderr
    assert not (tmp_path / "PWN").exists()


def test_requirements_that_sagemaker_would_install_are_told_of(sbatch, tmp_path: Path) -> None:
    assert "Install" not in sbatch(inputs="").stderr
    (tmp_path / "code" / "requirements.txt").write_text("timm")
    assert f"Install {tmp_path}/code/requirements.txt where the job runs" in sbatch(inputs="").stderr


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ((), {}, "inputs['training']: s3://bucket/digits is no directory of the hosts. Copy it where all hosts see it"),
        (("--channel=training=nowhere",), {}, "there is no directory nowhere here"),
        (("--channel=test=digits",), {"inputs": ""}, "the job has no channel 'test'. There is none."),
        (("--", "--partition", "gpu"), {"inputs": ""}, "'gpu' is no option for sbatch: write --name=value"),
        (
            (),
            {"inputs": "", "distribution": "smdistributed"},
            "smdistributed is a library of AWS's own. Use 'torchrun'",
        ),
        (
            ("--channel=a.b=digits", "--channel=A.B=digits"),
            {"inputs": "{'a.b': 's3://bucket/x', 'A.B': 's3://bucket/y'}"},
            "inputs['A.B']: SM_CHANNEL_A.B is the variable of the channel 'a.b', too. Rename one of the two",
        ),
        (
            ("--channel=a b=digits",),
            {"inputs": "{'a b': 's3://bucket/x'}"},
            "inputs: [0]['ChannelName'] 'a b' is not of the form that the API takes",
        ),
        (
            (),
            {"inputs": "", "variable": "B C;touch PWN;"},
            "environment: the name 'B C;touch PWN;' is not of the form that the API takes",
        ),
        ((), {"inputs": "", "more": "use_spot_instances='yes',"}, "use_spot_instances: is 'yes', of type str"),
        (
            (),
            {"inputs": "", "more": f"volume_size={VARIABLE}('Size'),"},
            "volume_size: is a pipeline's variable, Size, and no pipeline runs this job: it has no value",
        ),
        ((), {"inputs": "", "more": "git_config={'repo': 'https://x'},"}, "entry_point: it is not on this machine"),
    ],
)
def test_what_can_not_run_there_is_refused_with_the_remedy(sbatch, options, given, message) -> None:
    refused = sbatch(*options, **given)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert message in refused.stderr


@pytest.mark.usefixtures("may_send_again")
def test_a_script_that_sends_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "submit.py").write_text("print('nothing')")
    for script, message in (
        ("submit.py", "must call fit() of an estimators.Estimator"),
        ("no.py", "There is no submit script "),
        ("sumbit.py", f"Did you mean {tmp_path / 'submit.py'}?"),
    ):
        ended = CliRunner().invoke(app, ["sbatch", str(tmp_path / script)])
        assert ended.exit_code == 2
        assert message in ended.stderr
