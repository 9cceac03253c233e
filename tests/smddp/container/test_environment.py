"""The SM_* contract, compared with that of the real toolkit for the same /opt/ml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from smddp.container.contract import read_contract
from smddp.container.environment import passable, process_environment, sagemaker_variables, user_arguments
from smddp.errors import JobError
from smddp.job.hyperparameters.sources import POINTER

TOOLKIT = """
import json, os, sys
from sagemaker_training import environment
view = environment.Environment()
own = {name: os.environ[name] for name in ("SAGEMAKER_JOB_NAME", "CURRENT_HOST", "SAGEMAKER_REGION")}
print("<<<" + json.dumps({"variables": view.to_env_vars(), "arguments": view.to_cmd_args(), "own": own}))
"""

ODD = {
    "lr": 0.1,
    "epochs": 3,
    "flag": True,
    "nothing": None,
    "batch-size": 32,
    "n": 7,
    "layers": [1, "two", None],
    "nested": {"b": {"c": 1}, "a": [True]},
    "text": 'it\'s "quoted" $HOME é',
    "empty": "",
    "looks_like_json": '{"a": 1}',
}
SAGEMAKER = {
    "sagemaker_program": "train.py",
    "sagemaker_submit_directory": "s3://bucket/job/source/sourcedir.tar.gz",
    "sagemaker_container_log_level": 10,
    "sagemaker_job_name": "job-1",
    "sagemaker_region": "eu-west-1",
}
GROUPS = [
    {"instance_group_name": "cpu", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
    {"instance_group_name": "gpu", "instance_type": "ml.g5.xlarge", "hosts": ["algo-2", "algo-3"]},
]
THREE = ["algo-1", "algo-2", "algo-3"]
FRAMEWORK = {"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main", "TRAINING_JOB_NAME": "job-1"}


def plain(opt_ml):
    return opt_ml.hyperparameters(**SAGEMAKER, **ODD)


def raw_strings(opt_ml):
    numbers = {"id": "123e4567", "thousand": "1e3", "big": "1" * 30, "nan": "NaN", "name": "resnet", "flag": "true"}
    return opt_ml.config("hyperparameters", {**numbers, "sagemaker_program": "train.py"})


def two_hosts(opt_ml):
    opt_ml.hosts(
        ["algo-1", "algo-2"],
        "algo-2",
        network_interface_name="eth0",
        current_instance_type="ml.g5.12xlarge",
        current_group_name="homogeneousCluster",
        instance_groups=[
            {
                "instance_group_name": "homogeneousCluster",
                "instance_type": "ml.g5.12xlarge",
                "hosts": ["algo-1", "algo-2"],
            }
        ],
        topology=[{"hostName": "algo-1", "capacityUnitId": "x"}],
    )
    channel = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
    opt_ml.config("inputdataconfig", {"validation": channel, "training": channel, "my-extra.1": channel})
    return opt_ml.hyperparameters(
        **SAGEMAKER, **ODD, sagemaker_torch_distributed_enabled=True, sagemaker_instance_type="ml.g5.12xlarge"
    )


def heterogeneous(opt_ml):
    opt_ml.hosts(
        THREE, "algo-3", current_group_name="gpu", instance_groups=GROUPS, current_instance_type="ml.g5.xlarge"
    )
    asked = {"sagemaker_torch_distributed_enabled": True, "sagemaker_distribution_instance_groups": ["gpu"]}
    return opt_ml.hyperparameters(**SAGEMAKER, **asked, mp_parameters={"partitions": 2})


def outside_the_distribution(opt_ml):
    opt_ml.hosts(THREE, "algo-1", current_group_name="cpu", instance_groups=GROUPS)
    asked = {"sagemaker_mpi_enabled": True, "sagemaker_distribution_instance_groups": ["gpu"]}
    return opt_ml.hyperparameters(**SAGEMAKER, **asked, _tuning_objective_metric="accuracy")


@pytest.mark.toolkit
@pytest.mark.parametrize("environ", [{}, {**FRAMEWORK, "SAGEMAKER_PROGRAM": "bin/other.py"}], ids=["bare", "framework"])
@pytest.mark.parametrize("job", [plain, raw_strings, two_hosts, heterogeneous, outside_the_distribution])
@pytest.mark.slow
def test_every_variable_is_the_toolkit_s(opt_ml, job, environ):
    job(opt_ml.config("inputdataconfig", {"training": {"TrainingInputMode": "File"}}))
    environ = opt_ml.environ({**environ, "AWS_DEFAULT_REGION": "eu-west-1", "SM_STUDIO_LOCAL_MODE": "true"})
    done = subprocess.run([sys.executable, "-c", TOOLKIT], env=environ, capture_output=True, text=True, check=True)
    toolkit = json.loads(done.stdout.partition("<<<")[2])

    contract = read_contract(environ)
    variables = sagemaker_variables(contract, environ, gpus=int(toolkit["variables"]["SM_NUM_GPUS"]))
    assert variables == toolkit["variables"]
    assert user_arguments(contract.hyperparameters) == toolkit["arguments"]
    whole = process_environment(contract, environ, gpus=0)
    assert {name: whole[name] for name in toolkit["own"]} == toolkit["own"]


def test_arguments_are_sorted_and_keep_every_value_in_one_word():
    assert user_arguments({"n": 1, "b": True, "a-b": {"y": 2, "x": [1]}, "c": None, "d": "x y"}) == [
        *("--a-b", "x=[1],y=2", "-b", "True", "-c", "", "-d", "x y", "-n", "1")
    ]


def environment_of(opt_ml, **given: str) -> dict[str, str]:
    contract = read_contract({"SAGEMAKER_BASE_DIR": str(opt_ml.base)})
    return process_environment(contract, given, gpus=0)


def test_what_the_user_set_stays(opt_ml):
    given = {"MASTER_ADDR": "10.0.0.9", "PYTHONUNBUFFERED": "", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "ib0"}
    opt_ml.hosts(["algo-1"], network_interface_name="lo")
    environ = environment_of(opt_ml, **given)
    assert {name: environ[name] for name in given} == given
    assert environ["GLOO_SOCKET_IFNAME"] == "lo"


def test_an_interface_that_is_not_there_is_not_forced(opt_ml):
    environ = environment_of(opt_ml.hosts(["algo-1"], network_interface_name="no-such0"))
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & set(environ)


def test_the_hosts_meet_at_the_first_and_one_host_meets_itself(opt_ml):
    assert environment_of(opt_ml)["MASTER_ADDR"] == "127.0.0.1"
    environ = environment_of(opt_ml.hosts(["algo-1", "algo-2"], "algo-2"), SMDDP_MASTER_PORT="4242")
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("algo-1", "4242")


def test_the_code_directory_comes_before_the_user_s_path(opt_ml):
    path = environment_of(opt_ml, PYTHONPATH="/a:/b")["PYTHONPATH"].split(os.pathsep)
    assert path[:3] == [str(opt_ml.base / "code"), "/a", "/b"]
    assert all(Path(entry).name != "site-packages" for entry in path)


def test_what_no_variable_holds_is_refused_or_left_to_smddp(opt_ml, caplog: pytest.LogCaptureFixture) -> None:
    opt_ml.hyperparameters(text="x" * 120_000)
    contract = read_contract({"SAGEMAKER_BASE_DIR": str(opt_ml.base)})
    assert passable(contract, {}, gpus=0) is contract
    longer = replace(contract, hyperparameters={"text": "x" * 131_072})
    with pytest.raises(JobError, match=r"SM_HPS, .* 131,071 bytes, which Linux passes to no program"):
        passable(longer, {}, gpus=0)
    bundled = passable(replace(longer, platform={POINTER: "0f"}), {}, gpus=0)
    assert bundled.hyperparameters == {}
    assert "the script has its hyperparameters by smddp.run or smddp.Job alone" in caplog.text
