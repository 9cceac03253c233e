"""TorchX's commands on a local platform that runs in another process's directory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from torchx.cli.main import main as torchx
from torchx.runner import get_runner
from torchx.schedulers import get_scheduler_factories
from torchx.specs import AppDef, AppState, Role
from torchx.specs.finder import ComponentValidationException

from estimators.local import LocalSageMaker
from estimators.local.access import ROLE, KeptAccess
from estimators.torchx.scheduler import Destination
from tests.fork_python import ForkPython

SCRIPT = """
import argparse, os, sys, time

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--seconds", type=float)
parser.add_argument("--name")
given = parser.parse_args()
print("host", os.environ["SM_CURRENT_HOST"], "is", given.name, os.environ["GREETING"], flush=True)
time.sleep(given.seconds)
"""


@pytest.fixture(scope="module")
def directory(fork_server: ForkPython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("platform")
    with fork_server.in_use(), LocalSageMaker(path, storage="disk"):
        yield path


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "greet.py"
    path.write_text(SCRIPT)
    return str(path)


def run(directory: Path, script: str, **options: str) -> None:
    command = ["run", "-s", "smddp", "-cfg", f"local=True,directory={directory}"]
    given = {"script": script, "instance_type": "ml.c5.xlarge", "env": "GREETING=hello", **options}
    words = [word for key, value in given.items() for word in (f"--{key}", value)]
    torchx([*command, "smddp.train", *words, "seconds=0", "name=them"])


@pytest.mark.slow
def test_run_status_log_list_and_cancel(directory, script, capsys):
    run(directory, script, instance_count="2", max_run="60")
    (handle,) = re.findall(r"smddp://torchx/greet-\S+", capsys.readouterr().out)
    status = get_runner().wait(handle, wait_interval=0.2)
    assert status is not None
    assert (status.state, len(status.roles[0].replicas)) == (AppState.SUCCEEDED, 2)

    torchx(["status", handle])
    assert "SUCCEEDED" in capsys.readouterr().out
    torchx(["log", f"{handle}/algo/1", "--regex", "^host"])
    assert capsys.readouterr().out == "algo/1 host algo-2 is them hello\n"
    torchx(["list", "-s", "smddp", "-cfg", f"local=True,directory={directory}"])
    assert handle in capsys.readouterr().out


@pytest.mark.slow
def test_a_job_that_is_cancelled_ends(directory, script):
    runner = get_runner()
    metadata = {"smddp.instance_type": "ml.c5.xlarge"}
    role = Role(
        name="algo", image="", entrypoint=script, args=["seconds=60", "name=x"], env={"GREETING": ""}, metadata=metadata
    )
    handle = runner.run(AppDef(name="sleep", roles=[role]), "smddp", {"local": True, "directory": str(directory)})
    for line in runner.log_lines(handle, "algo", should_tail=True):
        if line.startswith("host"):
            break
    runner.cancel(handle)
    status = runner.wait(handle, wait_interval=0.2)
    assert status is not None
    assert status.state == AppState.CANCELLED
    assert runner.status(handle.replace("sleep-", "never-")) is None


@pytest.mark.slow
def test_without_local_it_goes_where_boto3_leads(directory, script, monkeypatch, capsys):
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # that of a test before has read another environment
    kept = KeptAccess(directory)
    for name, value in kept.require_running().environment(kept.directory).items():
        monkeypatch.setenv(name, value)
    words = ["--script", script, "--instance_type", "ml.c5.xlarge", "--iam_role", ROLE, "seconds=0"]
    torchx(["run", "--dryrun", "-s", "smddp", "smddp.train", *words])
    assert "to AWS: 1 × ml.c5.xlarge" in capsys.readouterr().out
    torchx(["list", "-s", "smddp"])
    assert "APP HANDLE" in capsys.readouterr().out


@pytest.mark.slow
def test_what_the_estimator_finds_reaches_the_user(directory, tmp_path, caplog):
    with pytest.raises(SystemExit):
        run(directory, str(tmp_path / "nothing.py"), max_run="0")
    assert "Nothing was sent: 2 things are wrong with the job" in caplog.text
    assert f"{tmp_path}/nothing.py" in caplog.text
    assert "max_run" in caplog.text


def test_a_platform_that_does_not_run_is_told_with_how_to_start_it(tmp_path, script, caplog):
    with pytest.raises(SystemExit):
        run(tmp_path, script)
    assert f"no platform runs on {tmp_path}: start one with smddp local up --directory {tmp_path}" in caplog.text


@pytest.mark.parametrize(
    ("role", "told"),
    [
        (Role(name="echo", image="", entrypoint="echo"), "takes those of the component smddp.train"),
        (
            Role(
                name="a", image="", entrypoint="a.py", args=["--lr=1"], metadata={"smddp.instance_type": "ml.c5.large"}
            ),
            "'--lr=1' is no hyperparameter. Write name=value",
        ),
    ],
)
def test_an_app_that_is_no_job_is_refused(directory, role, told):
    with pytest.raises(ComponentValidationException, match=told):
        get_runner().dryrun(AppDef(name="app", roles=[role]), "smddp", {"local": True, "directory": str(directory)})


def test_hyperparameters_are_json_where_they_read_as_json(directory, tmp_path, capsys):
    (tmp_path / "train.py").write_text("import sys; print(sys.argv)")
    app: Any = AppDef(
        name="app",
        roles=[
            Role(
                name="a",
                image="",
                entrypoint=str(tmp_path / "train.py"),
                args=["lr=0.1", "name=adam", "text=a=b", 'quoted="5"', "none=null"],
                metadata={"smddp.instance_type": "ml.c5.large"},
            )
        ],
    )
    request = get_runner().dryrun(app, "smddp", {"local": True, "directory": str(directory)}).request
    expected = {"lr": 0.1, "name": "adam", "text": "a=b", "quoted": "5", "none": None}
    assert request.estimator.arguments["hyperparameters"] == expected
    assert f"to the local platform on {directory}: 1 × ml.c5.large" in str(request)


def test_an_id_keeps_its_place():
    for destination in (Destination(directory=None), Destination(directory=Path("/tmp/a b@c/%2F"))):
        assert "/" not in destination.app_id("job-1")
        assert Destination.of(destination.app_id("job-1")) == (destination, "job-1")


def test_torchx_finds_the_scheduler_and_keeps_its_own_components(capsys):
    assert "smddp" in get_scheduler_factories()
    torchx(["builtins"])
    found = capsys.readouterr().out
    assert "smddp.train" in found
    assert "dist.torchrun" in found
