"""A submit script becomes a job file of OpenPAI, whose commands train on its task instances."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from typer.testing import CliRunner

from smddp.cli.app import app
from tests.estimators.export.openpai_protocol import SCHEMA
from tests.ports import free_port

SUBMIT = """
from estimators import Estimator

Estimator(
    "train.py",
    source_dir="code",
    instance_type="ml.g5.12xlarge",
    instance_count=2,
    distribution={distribution!r},
    hyperparameters={{"note": "it's <% $parameters.x %> && $HOME", "steps": 3}},
    **{{"environment": {{"GREETING": "good day"}}, {more}}},
    base_job_name="first try",
    max_run=600,
).fit({inputs})
"""

TRAIN = """
import os
from dataclasses import dataclass
import torch
import smddp

@dataclass
class Config:
    note: str
    steps: int

def main(config: Config, job: smddp.Job):
    model = torch.nn.Linear(2, 2)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.ones(config.steps * 8, 2))
    loader = trainer.loader(data, batch_size=8)
    for _epoch in trainer.epochs(1):
        for (batch,) in trainer.batches(loader):
            trainer.step(trainer.model(batch).square().mean())
    c = job.cluster
    line = f"{c.rank} {c.world_size} {trainer.steps} {config.note} {os.environ.get('SM_CHANNEL_TRAINING')}"
    line += f" {os.environ['GREETING']}"
    print(line, flush=True)

smddp.run(main)
"""

CONTAINER = ("--image", "me/image:1", "--cpus", "2", "--memory-mb", "4096", "--gpus", "0")


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_send_again: None):
    """Calls ``smddp export --openpai`` on a submit script of such a job."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)

    def run(*options, container=CONTAINER, distribution="torchrun", inputs="{'training': 's3://bucket/x'}", more=""):
        (tmp_path / "submit.py").write_text(SUBMIT.format(distribution=distribution, inputs=inputs, more=more))
        return CliRunner().invoke(app, ["export", "--openpai", "submit.py", *container, *options])

    return run


def read(text: str) -> dict[str, Any]:
    """The job file, if it is one."""
    job = yaml.safe_load(text)
    errors = [f"{error.json_path}: {error.message}" for error in Draft7Validator(SCHEMA).iter_errors(job)]
    assert not errors
    names = {item["name"] for item in job["prerequisites"] if item["type"] == "dockerimage"}
    assert {role["dockerImage"] for role in job["taskRoles"].values()} <= names
    return dict(job)


def environment(task: int, port: int) -> dict[str, str]:
    """What OpenPAI sets in a task instance, both on this machine."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SM_", "SLURM_", "PAI_"))},
        "PAI_CURRENT_TASK_ROLE_NAME": "worker",
        "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": str(task),
        "PAI_TASK_ROLE_TASK_COUNT_worker": "2",
        "PAI_HOST_IP_worker_0": "127.0.0.1",
        "PAI_HOST_IP_worker_1": "127.0.0.1",
        "PAI_PORT_LIST_worker_0_SynPort": str(port),
        "PAI_PORT_LIST_worker_1_SynPort": "1",
    }


@pytest.mark.slow
@pytest.mark.usefixtures("fork_python")
def test_two_task_instances_train_what_the_submit_script_would_send(export, tmp_path: Path) -> None:
    written = export("--channel", "training=/", "--run-dir", str(tmp_path / "run"), "--python", sys.executable)
    assert written.exit_code == 0, written.stderr
    role = read(written.stdout)["taskRoles"]["worker"]
    port = free_port()
    tasks = [
        subprocess.Popen(
            ["bash", "-c", " && ".join(command.strip() for command in role["commands"])],  # as OpenPAI puts them
            env=environment(task, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for task in range(role["instances"])
    ]
    ended = [task.communicate(timeout=100) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], ended
    for rank, (out, _) in enumerate(ended):
        assert f"{rank} 2 3 it's <% $parameters.x %> && $HOME / good day" in out
    assert (tmp_path / "run" / "checkpoints" / "step-000000000003" / "manifest.json").is_file()


def test_the_file_asks_openpai_for_what_the_job_asks_for(export) -> None:
    mpi = {"mpi": {"enabled": True, "processes_per_host": 4}}
    container = (
        "--cpus",
        "8",
        "--memory-mb",
        "65536",
        "--gpus",
        "4",
        "--code",
        "/share/code",
        "--run-dir",
        "/share/run",
    )
    written = export(
        container=container,
        distribution=mpi,
        inputs="",
        more='"image_uri": "registry/image", "checkpoint_s3_uri": "s3://b/run-7"',
    )
    assert written.stdout.startswith(
        "# Written by smddp export from submit.py: what it would train on 2 × ml.g5.12xlarge."
    )
    job = read(written.stdout)
    role = job["taskRoles"]["worker"]
    assert (job["name"], role["instances"], job["prerequisites"][0]["uri"]) == ("first-try", 2, "registry/image")
    assert role["resourcePerInstance"] == {"cpu": 8, "memoryMB": 65536, "gpu": 4, "ports": {"SynPort": 1}}
    assert role["commands"][0] == "export GREETING='good day'"
    assert role["commands"][1].startswith(
        "timeout --preserve-status 600 python3 -m smddp.cli run --run-dir /share/run "
    )
    assert " --processes-per-node 4 --checkpoint-s3-uri s3://b/run-7 /share/code/train.py " in role["commands"][1]
    assert "<%" not in "".join(role["commands"]), "OpenPAI would take it for a reference"


def test_a_channel_whose_variable_is_no_identifier_is_set_for_the_command(export, tmp_path: Path) -> None:
    (tmp_path / "code" / "train.py").write_text(TRAIN.replace("channels['training']", "channels['train-data']"))
    written = export("--run-dir=/run", "--channel=train-data=/mnt/<% x %>", inputs="{'train-data': 's3://bucket/x'}")
    commands = read(written.stdout)["taskRoles"]["worker"]["commands"]
    assert commands[:-1] == ["export GREETING='good day'", """export SM_CHANNELS='["train-data"]'"""]
    last = "import os; print(os.environ['SM_CHANNEL_TRAIN-DATA'], os.environ['SM_CHANNELS'], os.environ['GREETING'])"
    run = commands[-1].replace("python3 -m", f"{sys.executable} -c {shlex.quote(last)}")
    for shell in ("bash", "sh"):
        ended = subprocess.run([shell, "-c", " && ".join([*commands[:-1], run])], capture_output=True, check=False)
        assert (ended.stdout, ended.stderr) == (b'/mnt/<% x %> ["train-data"] good day\n', b"")


def test_a_line_end_that_only_yaml_knows_arrives(export) -> None:
    written = export("--run-dir=/run", inputs="", more="'environment': {'ODD': 'a\\x85b\\u2028c'}")
    assert "export ODD='a\x85b\u2028c'" in read(written.stdout)["taskRoles"]["worker"]["commands"]


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ((), {}, "inputs['training']: s3://bucket/x is no directory of the hosts. Copy it where all hosts see it"),
        (("--code", "code"), {}, "code is a directory of the containers: give its absolute path"),
        (
            ("--code", "/code"),
            {"inputs": "", "more": "'dependencies': ['code']"},
            "dependencies: they are not in the source directory. Put them there, or leave out --code.",
        ),
        (
            (),
            {"inputs": "", "more": "'environment': {'A;B': '1'}"},
            "environment: the name 'A;B' is not of the form that the API takes",
        ),
        (
            (),
            {"inputs": "", "container": CONTAINER[2:]},
            "A container of image '', 2 CPUs, 4096 MB and 0 GPUs: give the name",
        ),
    ],
)
def test_what_can_not_run_there_is_refused_with_the_remedy(export, options, given, message) -> None:
    refused = export("--run-dir", "/run", *options, **given)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert message in refused.stderr
