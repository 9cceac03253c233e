"""The command line: what it prints, and that bad input is one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smddp._version import __version__
from smddp.cli.app import app
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("fork_python")


def smddp(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    programs = Path(sys.executable).parent
    command = [programs / "smddp", *arguments]
    environment = {"PATH": str(programs), "COLUMNS": "200", **variables}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_help_names_every_command(tmp_path: Path) -> None:
    shown = smddp("--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert all(command in shown.stdout for command in ("demo", "env", "run", "local"))


def test_help_begins_with_what_a_newcomer_looks_for(tmp_path: Path) -> None:
    shown = smddp("--help", cwd=tmp_path).stdout
    found = [line.split()[1] for line in shown[shown.index("Commands") :].splitlines() if line.startswith("│ ")]
    assert found[:3] == ["run", "plan", "local"]


def test_shows_its_version(tmp_path: Path) -> None:
    shown = smddp("--version", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, f"smddp {__version__}\n")


def test_env_tells_which_variable_decided_each_field(tmp_path: Path) -> None:
    variables = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    shown = smddp("env", cwd=tmp_path, MASTER_ADDR="10.0.0.1", MASTER_PORT="29500", **variables)
    assert "launcher: torchrun" in shown.stdout
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.stdout.splitlines() if "│" in line]
    assert ["rank", "3", "RANK=3"] in rows
    assert ["node_rank", "1", "RANK=3 // LOCAL_WORLD_SIZE=2"] in rows


def test_env_in_a_job_shows_its_directories(tmp_path: Path) -> None:
    config = tmp_path / "input" / "config"
    config.mkdir(parents=True)
    (config / "resourceconfig.json").write_text(json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]}))
    shown = smddp(
        "env",
        cwd=tmp_path,
        SAGEMAKER_BASE_DIR=str(tmp_path),
        SM_HOSTS='["algo-1"]',
        SM_CURRENT_HOST="algo-1",
        TRAINING_JOB_NAME="run-7",
    )
    assert "run-7" in shown.stdout
    assert str(tmp_path / "checkpoints") in shown.stdout


def test_env_shows_where_in_s3_the_checkpoints_go(tmp_path: Path) -> None:
    shown = smddp("env", cwd=tmp_path, SMDDP_CHECKPOINT_S3_URI="s3://bucket/run-7")
    assert "│ job.checkpoint_s3_uri │ s3://bucket/run-7 │ SMDDP_CHECKPOINT_S3_URI" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        (["env"], {"RANK": "3", "WORLD_SIZE": "4"}, "LOCAL_RANK"),
        (["run", "no-such-script.py"], {}, "no-such-script.py"),
        (["run", "-m", "trian"], {}, "There is no module trian. Did you mean train?"),
        (["run", "--processes-per-node", "0", "train.py"], {}, "0 processes per node"),
        (["run", "--run-dir", "train.py", "train.py"], {}, "train.py is a file"),
        (["run", "--nodes", "2", "--node-rank", "5", "train.py"], {}, "--node-rank 5: expected one of 0 to 1"),
        (
            ["run", "--checkpoint-s3-uri", "bucket", "train.py"],
            {},
            "--checkpoint-s3-uri=bucket is no place in S3",
        ),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], told: str
) -> None:
    (tmp_path / "train.py").write_text("")
    shown = smddp(*arguments, cwd=tmp_path, **variables)
    assert shown.returncode == 2
    assert shown.stderr.startswith("smddp: ")
    assert told in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_a_run_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    shown = smddp("run", "--run-dir", "/proc/none", "train.py", cwd=tmp_path)
    (_, told) = shown.stderr.splitlines()
    assert shown.returncode == 2
    assert told.startswith("smddp: The job's directory /proc/none/model can't be made: No such file or directory. ")


def test_an_option_of_run_after_the_script_that_refuses_it_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from dataclasses import dataclass\nimport smddp\n\n@dataclass\nclass Config:\n    lr: float = 0.1\n\n"
        'def main(config: Config): ...\n\nif __name__ == "__main__":\n    smddp.run(main)\n'
    )
    shown = smddp("run", "train.py", "--run-dir=runs/1", cwd=tmp_path)
    told = "smddp: --run-dir=runs/1 goes to train.py: options of smddp run come before the script\n"
    assert (shown.returncode, shown.stderr) == (2, told)


def test_an_option_of_run_that_the_script_refuses_as_it_runs_is_told_at_the_end_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import argparse\nmake = argparse.ArgumentParser\nmake().parse_args()\n")
    shown = smddp("run", "train.py", "--processes-per-node", "2", cwd=tmp_path)
    first, *lines, last = shown.stderr.splitlines()
    assert shown.returncode == 2
    assert "train.py: error: unrecognized arguments: --processes-per-node 2" in lines
    assert first == last
    assert last == "smddp: --processes-per-node goes to train.py: options of smddp run come before the script"


def test_the_help_of_a_script_has_no_log_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse\nimport smddp\n\ndef main():\n    argparse.ArgumentParser().parse_args()\n\n"
        'if __name__ == "__main__":\n    smddp.run(main)\n'
    )
    command = [sys.executable, "train.py", "--help"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("usage: ")


def test_a_misspelt_option_before_the_script_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    shown = smddp("run", "--proceses-per-node", "2", "train.py", cwd=tmp_path)
    assert shown.returncode == 2
    assert "No such option: --proceses-per-node" in shown.stderr
    assert "--processes-per-node" in shown.stderr


def test_a_failure_is_told_once_with_the_path_of_its_whole_traceback(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import smddp\n\ndef main(job: smddp.Job):\n    raise ValueError('label 41')\n\nsmddp.run(main)"
    )
    shown = smddp("run", "script.py", cwd=tmp_path)
    assert shown.returncode == 1
    assert shown.stderr.count("ValueError: label 41") == 1
    *_, path = next(line for line in shown.stderr.splitlines() if "whole traceback" in line).split()
    assert "raise ValueError('label 41')" in (tmp_path / path).read_text()
    assert not Path(path).is_absolute()


def test_run_tells_the_ranks_where_in_s3_their_checkpoints_go(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os; print(os.environ['SMDDP_CHECKPOINT_S3_URI'])")
    shown = smddp("run", "--checkpoint-s3-uri", "s3://bucket/run-7", "script.py", cwd=tmp_path)
    assert shown.stdout == "s3://bucket/run-7\n"


def test_run_passes_the_scripts_arguments_and_exit_code_on(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; sys.exit(len(sys.argv))")
    shown = smddp("run", "--run-dir", "here", "script.py", "--epochs", "3", "--flag", cwd=tmp_path)
    assert shown.returncode == 4


@pytest.mark.parametrize("option", ["-m", "--module"])
def test_run_takes_a_module_as_python_does(tmp_path: Path, option: str) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.py").write_text("import sys; print(__spec__.name, sys.argv[1:])")
    shown = smddp("run", option, "--run-dir", "here", "jobs.train", "--lr", "0.1", "--nodes", "2", cwd=tmp_path)
    assert shown.stdout == "jobs.train ['--lr', '0.1', '--nodes', '2']\n", shown.stderr
    assert "smddp: --nodes goes to jobs.train: options of smddp run come before the script" in shown.stderr
    assert "starting 1 rank of jobs.train" in shown.stderr


def rank(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "smddp.cli", "collectives", "--seconds", "0.001", *arguments],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.slow
def test_starts_two_ranks_where_there_is_no_launcher(tmp_path):
    done = rank(tmp_path, "--operation", "all_gather", "--size", "4KiB", "--json", "found.jsonl")
    assert done.returncode == 0, done.stderr
    (found,) = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert (found["operation"], found["ranks"], found["size"]) == ("all_gather", 2, 4096)
    assert "gloo on cpu, 2 rank(s)" in done.stdout


def test_measures_the_ranks_of_a_launcher(tmp_path):
    here = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = rank(tmp_path, "--operation", "send/recv", "--operation", "barrier", **here, **master)
    assert done.returncode == 0, done.stderr
    assert "gloo on cpu, 1 rank(s)" in done.stdout
    assert "lacks send/recv: it takes 2 ranks, and here is 1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--operation", "allreduce"], "allreduce: there is send/recv, isend/irecv, broadcast"),
        (["--size", "4MB"], "'4MB' is no size"),
        (["--size", "0"], "'0' is no size"),
        (["--size", "5GiB"], "up to 4GiB"),
        (["--json", "none/found.jsonl"], "can't be written"),
        (["--plot", "found.txt"], "ends with .png, .svg or .pdf"),
        (["--seconds", "-1"], "--seconds"),
    ],
)
def test_bad_input_is_told_before_a_rank_starts(arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["collectives", *arguments], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert told in done.output


def test_an_option_of_run_after_the_script_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    done = smddp("run", "train.py", "--nodes", "2", "--lr=0.1", cwd=tmp_path)
    assert "['--nodes', '2', '--lr=0.1']" in done.stdout
    assert "smddp: --nodes goes to train.py: options of smddp run come before the script" in done.stderr
