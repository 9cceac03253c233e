from __future__ import annotations

import logging

import pytest

from smddp.container.command import choose_command
from smddp.container.contract import read_contract
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


def test_ranks_need_a_python_file(opt_ml):
    with pytest.raises(JobError, match=r"train\.sh is no Python file"):
        choose(opt_ml, "train.sh", **{TORCH: True})
    with pytest.raises(JobError, match=r"train\.py is part of a Python package"):
        choose(opt_ml.code("setup.py", ""), **{TORCH: True})


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
