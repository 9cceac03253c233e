from __future__ import annotations

import itertools
import json
import logging
import re
import subprocess
import sys
from typing import Any

import pytest

from smddp.container.command import PROCESSES_IN_ALL, PROCESSES_PER_HOST, choose_command
from smddp.container.contract import read_contract
from smddp.container.source import fault_of_name
from smddp.errors import JobError

MPI, DDP, TORCH, SMDDP = (
    f"sagemaker_{name}_enabled" for name in ("mpi", "pytorch_ddp", "torch_distributed", "distributed_dataparallel")
)


def choose(opt_ml, entry_point="train.py", *, gpus=0, environ=None, **hyperparameters):
    contract = read_contract({"SAGEMAKER_BASE_DIR": str(opt_ml.hyperparameters(**hyperparameters).base)})
    return choose_command(contract, entry_point, environ or {}, gpus=gpus)


def two_hosts(opt_ml, current="algo-2"):
    return opt_ml.hosts(["algo-1", "algo-2"], current)


def test_without_a_distribution_it_is_plain_python(opt_ml):
    command = choose(opt_ml, lr=0.1, n=2, gpus=8)
    assert command.line("python") == ["python", "train.py", "--lr", "0.1", "-n", "2"]
    assert not command.many


@pytest.mark.parametrize("name", ["train.sh", "bin/program"])
def test_what_is_no_python_file_runs_through_a_shell(opt_ml, name):
    command = choose(opt_ml, name, a="b")
    assert command.through_shell
    assert command.line("python")[-3:] == [name, "-a", "b"]


def test_a_package_runs_as_a_module_and_is_to_be_installed(opt_ml):
    command = choose(opt_ml.code("setup.py", ""), "trainer/main.py")
    assert command.line("python") == ["python", "-m", "trainer.main"]
    assert command.package


def test_torch_distributed_on_one_host_lets_torchrun_find_a_port(opt_ml):
    command = choose(opt_ml, **{TORCH: True}, gpus=4)
    start = ["-m", "smddp.launch.torchrun", "--nnodes", "1", "--nproc-per-node", "4", "train.py"]
    assert command.words == tuple(start)
    assert command.many


def test_torch_distributed_on_two_hosts_meets_at_the_first(opt_ml):
    command = choose(two_hosts(opt_ml), **{TORCH: True}, lr=1)
    assert command.words == (
        *("-m", "smddp.launch.torchrun", "--nnodes", "2", "--nproc-per-node", "1"),
        *("--node-rank", "1", "--master-addr", "algo-1", "--master-port", "7777", "train.py", "--lr", "1"),
    )


def test_the_port_can_be_moved(opt_ml):
    command = choose(two_hosts(opt_ml), **{TORCH: True}, environ={"SMDDP_MASTER_PORT": "4242"})
    assert command.words[command.words.index("--master-port") + 1] == "4242"


def test_the_number_of_processes_is_the_job_s_then_the_gpus_then_one(opt_ml):
    def processes(**given):
        words = choose(opt_ml, **{TORCH: True}, **given).words
        return words[words.index("--nproc-per-node") + 1]

    assert processes() == "1"
    assert processes(gpus=8) == "8"
    assert processes(gpus=8, sagemaker_mpi_num_of_processes_per_host=2) == "2"


@pytest.mark.parametrize("number", ["two", -1, 1.5])
def test_a_number_of_processes_that_is_none_is_refused(opt_ml, number):
    with pytest.raises(JobError, match="must be a whole number"):
        choose(opt_ml, **{TORCH: True}, sagemaker_mpi_num_of_processes_per_host=number)


@pytest.mark.parametrize("enabled", [TORCH, MPI])
@pytest.mark.parametrize("number", [10**9, "9" * 5000])
def test_a_number_of_processes_that_would_take_the_host_down_is_refused(opt_ml, enabled, number):
    with pytest.raises(JobError, match="is more than this host takes: at most"):
        choose(opt_ml, **{enabled: True}, sagemaker_mpi_num_of_processes_per_host=number)


@pytest.mark.parametrize(
    ("enabled", "module"),
    [
        ({MPI, DDP, TORCH, SMDDP}, "mpirun"),
        ({MPI, TORCH}, "mpirun"),
        ({DDP, TORCH, SMDDP}, "torchrun"),
        ({TORCH, SMDDP}, "torchrun"),
        ({SMDDP}, "torchrun"),
    ],
)
def test_the_order_is_the_toolkit_s(opt_ml, enabled, module):
    command = choose(opt_ml, **dict.fromkeys(enabled, True))
    assert command.words[1] == f"smddp.launch.{module}"


def test_what_is_switched_off_does_not_count(opt_ml):
    assert choose(opt_ml, **{SMDDP: False, TORCH: False}).words == ("train.py",)


def test_smddp_that_is_not_installed_is_said_loudly(opt_ml, caplog):
    with caplog.at_level(logging.WARNING):
        choose(opt_ml, **{SMDDP: True})
    assert "SMDDP WAS ASKED FOR AND IS NOT HERE" in caplog.text


def test_mpi_on_one_host_passes_the_user_s_options(opt_ml):
    command = choose(
        opt_ml,
        **{MPI: True},
        sagemaker_mpi_num_of_processes_per_host=2,
        sagemaker_mpi_custom_mpi_options="--verbose -x NAME=1",
    )
    options = ("--option=--verbose", "--option=-x", "--option=NAME=1")
    assert command.words == ("-m", "smddp.launch.mpirun", "--processes", "2", *options, "train.py")


def test_mpi_on_several_hosts_starts_mpirun_on_the_first_and_serves_it_on_the_others(opt_ml):
    first = choose(two_hosts(opt_ml, "algo-1"), **{MPI: True}, sagemaker_mpi_num_of_processes_per_host=2)
    hosts = ("--processes", "2", "--hosts", "algo-1,algo-2")
    assert first.words == ("-m", "smddp.launch.mpirun", *hosts, "train.py")
    second = choose(two_hosts(opt_ml), **{MPI: True})
    assert second.words == ("-m", "smddp.launch.mpi_host", "--first", "algo-1")


def test_a_parameter_server_is_one_rank_a_host_and_says_what_the_script_has_to_do(opt_ml, caplog):
    command = choose(opt_ml, sagemaker_parameter_server_enabled=True, gpus=4)
    assert command.words == ("-m", "smddp.launch.torchrun", "--nnodes", "1", "--nproc-per-node", "1", "train.py")
    assert "PyTorch has no parameter server of its own" in caplog.text


def test_restarts_are_torchrun_s(opt_ml, caplog):
    environ = {"SMDDP_MAX_RESTARTS": "3"}
    assert choose(opt_ml, environ=environ, **{TORCH: True}).words[-3:] == ("--max-restarts", "3", "train.py")
    assert not caplog.text
    assert choose(opt_ml, environ=environ).words == ("train.py",)
    assert "SMDDP_MAX_RESTARTS=3 does nothing here" in caplog.text


def test_restarts_that_are_no_number_are_refused(opt_ml):
    with pytest.raises(JobError, match="SMDDP_MAX_RESTARTS='many' must be a whole number"):
        choose(opt_ml, environ={"SMDDP_MAX_RESTARTS": "many"}, **{TORCH: True})


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1", ""])
def test_a_port_that_is_none_is_refused(opt_ml, port):
    with pytest.raises(JobError, match=f"SMDDP_MASTER_PORT='{port}' must be a TCP port, 1 to 65535"):
        choose(opt_ml, environ={"SMDDP_MASTER_PORT": port}, **{TORCH: True})


@pytest.mark.parametrize("name", ["multi_worker_mirrored_strategy", "pytorch_xla_multi_worker"])
def test_what_is_not_for_pytorch_is_refused(opt_ml, name):
    with pytest.raises(JobError, match=f"sagemaker_{name}_enabled.*torch_distributed"):
        choose(opt_ml, **{f"sagemaker_{name}_enabled": True})


def test_ranks_of_torchrun_need_a_python_file(opt_ml):
    with pytest.raises(JobError, match=r"train\.sh is no Python file"):
        choose(opt_ml, "train.sh", **{TORCH: True})
    with pytest.raises(JobError, match=r"train\.py is part of a Python package"):
        choose(opt_ml.code("setup.py", ""), **{TORCH: True})


@pytest.mark.parametrize("enabled", [MPI, DDP, SMDDP, "sagemaker_parameter_server_enabled"])
def test_other_ranks_may_be_shell_scripts_and_modules_of_a_package(opt_ml, enabled):
    shell = choose(opt_ml, "bin/train.sh", **{enabled: True, "lr": 1})
    assert shell.words[-5:] == ("-m", "smddp.container.job_process", "bin/train.sh", "--lr", "1")
    assert not shell.package
    opt_ml.code("setup.py", "")
    for name in ("trainer/main.py", "trainer.main"):
        module = choose(opt_ml, name, **{enabled: True, "lr": 1})
        assert module.words[-4:] == ("-m", "trainer.main", "--lr", "1")
        assert module.package
    assert not choose(opt_ml, "bin/train.sh", **{enabled: True}).package


def test_each_host_of_mpi_s_installs_a_package(opt_ml):
    opt_ml.code("setup.py", "")
    for host in ("algo-1", "algo-2"):
        assert choose(two_hosts(opt_ml, host), "main.py", **{MPI: True}).package


def test_mpi_starts_fewer_ranks_than_the_hosts_take_if_the_job_asks_for_them(opt_ml):
    few = {MPI: True, PROCESSES_PER_HOST: 2, PROCESSES_IN_ALL: 3}
    first = choose(two_hosts(opt_ml, "algo-1"), **few)
    assert first.words[2:6] == ("--processes", "2", "--ranks", "3")
    assert "--ranks" not in choose(two_hosts(opt_ml, "algo-1"), **few | {PROCESSES_IN_ALL: 4}).words
    for wrong, fault in ((5, "5 is more than the job's hosts take together: 4"), ("two", "must be a whole number")):
        with pytest.raises(JobError, match=fault):
            choose(two_hosts(opt_ml, "algo-1"), **few | {PROCESSES_IN_ALL: wrong})


def two_groups(opt_ml, current, group):
    groups = [
        {"instance_group_name": "cpu", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
        {"instance_group_name": "gpu", "instance_type": "ml.g5.xlarge", "hosts": ["algo-2", "algo-3"]},
    ]
    return opt_ml.hosts(["algo-1", "algo-2", "algo-3"], current, current_group_name=group, instance_groups=groups)


def test_groups_of_which_none_is_chosen_do_not_train_each_by_itself(opt_ml):
    with pytest.raises(JobError, match="the instance groups cpu, gpu, each of which would train by"):
        choose(two_groups(opt_ml, "algo-1", "cpu"), **{TORCH: True})
    assert choose(two_groups(opt_ml, "algo-1", "cpu")).words == ("train.py",)


@pytest.mark.parametrize("named", [["gpus"], "gpu", 3, None, [["gpu"]], []])
def test_groups_that_the_job_does_not_have_are_refused(opt_ml, named):
    with pytest.raises(JobError, match="instance groups are cpu, gpu"):
        choose(two_groups(opt_ml, "algo-1", "cpu"), **{TORCH: True, "sagemaker_distribution_instance_groups": named})


def test_a_group_outside_the_distribution_runs_plain(opt_ml):
    asked = {TORCH: True, "sagemaker_distribution_instance_groups": ["gpu"]}
    plain = choose(two_groups(opt_ml, "algo-1", "cpu"), **asked)
    assert plain.words == ("train.py",)
    ranks = choose(two_groups(opt_ml, "algo-3", "gpu"), **asked)
    assert ranks.words[2:10] == (
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--node-rank",
        "1",
        "--master-addr",
        "algo-2",
    )


PARAMETER_SERVER = "sagemaker_parameter_server_enabled"

ENTRIES = {
    "a file": ("train.py", ()),
    "a file in a directory": ("bin/train.py", ()),
    "a shell script": ("train.sh", ()),
    "a program": ("bin/program", ()),
    "a package": ("main.py", ("setup.py",)),
    "a package's module": ("trainer.main", ("setup.py",)),
    "a shell script beside a package": ("train.sh", ("setup.py",)),
    "a name of another language": ("tränen.py", ()),
}
RANKS: dict[str, dict[str, Any]] = {
    "none": {},
    "mpi": {MPI: True},
    "two each": {MPI: True, PROCESSES_PER_HOST: 2},
    "three in all": {MPI: True, PROCESSES_PER_HOST: 2, PROCESSES_IN_ALL: 3},
    "torchrun": {TORCH: True, PROCESSES_PER_HOST: 2},
    "pytorchddp": {DDP: True, PROCESSES_PER_HOST: 2},
    "smdistributed": {SMDDP: True, PROCESSES_PER_HOST: 2},
    "parameter_server": {PARAMETER_SERVER: True},
}

# What AWS's toolkit would start, for each layout in a file: how many ranks, and each one's words after python, or None
# for what it refuses. Of mpirun's command line a rank's own words are all behind the last option.
TOOLKIT = """
import contextlib, json, os, sys
from pathlib import Path
from sagemaker_training import environment, entry_point, errors, mpi, process, smdataparallel, torch_distributed
from sagemaker_pytorch_container import training

def words(command):
    command = list(map(str, command))
    if command[-3:-1] == ["/bin/sh", "-c"]:
        return ["sh", *command[-1].split()]
    words = command[command.index(sys.executable) + 1:] if sys.executable in command else command
    words = words[2:] if words[:2] == ["-m", "mpi4py"] else words
    return words[1:] if words[0] == "--" else words

def started(**given):
    process.validate_entry_point(given["user_entry_point"])
    view = environment.Environment()
    runner = entry_point.runner.get(
        given["runner_type"], given["user_entry_point"], given["args"], given["env_vars"]
    )
    command = runner._create_command()
    if given["runner_type"] is entry_point.runner.SMDataParallelRunnerType:
        command += super(type(runner), runner)._create_command()
    if "-np" in command:
        return int(command[command.index("-np") + 1]), words(command)
    if "--nproc_per_node" in command:
        each = int(command[command.index("--nproc_per_node") + 1])
        return each * len(view.hosts), command[command.index(given["user_entry_point"]):]
    return 1, words(command)

base, found = Path(os.environ["SAGEMAKER_BASE_DIR"]), []
for layout in json.loads(Path(sys.argv[1]).read_text()):
    for name in ("main.py", "setup.py"):
        (base / "code" / name).unlink(missing_ok=True)
    for name in layout["files"]:
        (base / "code" / name).write_text("")
    (base / "input/config/hyperparameters.json").write_text(
        json.dumps({name: json.dumps(value) for name, value in layout["hyperparameters"].items()})
    )
    entry_point.run = lambda **given: found.append(started(**given))
    with contextlib.redirect_stdout(sys.stderr):
        try:
            training.train(environment.Environment())
        except errors.ClientError:
            found.append(None)
print(json.dumps(found))
"""


def ours(opt_ml, entry_point: str, hyperparameters: dict[str, Any]) -> list[Any] | None:
    if fault_of_name(entry_point):
        return None
    try:
        line = " ".join(choose(opt_ml, entry_point, **hyperparameters).words)
    except JobError:
        return None
    line = re.sub(r'^(/bin/sh -c exec "./\$0" "\$@"|(.*)-m smddp.container.job_process) ', r"\2sh ./", line)
    started = re.match(r"-m smddp\.launch\.\S+ (?P<options>(?:--\S+ \S+ )+)", line)
    options = "" if started is None else started["options"]
    numbers = dict(re.findall(r"--(processes|nproc-per-node|ranks) (\d+)", options))
    each = numbers.get("processes") or numbers.get("nproc-per-node")
    ranks = int(numbers.get("ranks", 0)) or (2 * int(each) if each else 1)
    return [ranks, line[0 if started is None else started.end() :].split()]


@pytest.mark.toolkit
@pytest.mark.slow
def test_64_layouts_start_as_under_the_toolkit(opt_ml, tmp_path):
    two_hosts(opt_ml, "algo-1").code("requirements.txt", "").config("inputdataconfig", {})
    layouts = [
        {"files": files, "hyperparameters": {"lr": "1", "sagemaker_program": name, **asked}}
        for (name, files), asked in itertools.product(ENTRIES.values(), RANKS.values())
    ]
    (tmp_path / "layouts").write_text(json.dumps(layouts))
    done = subprocess.run(
        [sys.executable, "-c", TOOLKIT, str(tmp_path / "layouts")],
        env=opt_ml.environ({"SM_STUDIO_LOCAL_MODE": "true"}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    differing = []
    for layout, theirs in zip(layouts, json.loads(done.stdout), strict=True):
        (opt_ml.base / "code" / "setup.py").unlink(missing_ok=True)
        for name in layout["files"]:
            opt_ml.code(name, "")
        asked = layout["hyperparameters"]
        if (found := ours(opt_ml, asked["sagemaker_program"], asked)) != theirs:
            differing.append((asked, theirs, found))
    # A parameter server's ranks, one a host as there, are joined here.
    assert [each for each in differing if PARAMETER_SERVER not in each[0]] == []
    assert all(found == [2, words] for _, (_, words), found in differing)
