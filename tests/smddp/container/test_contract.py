from __future__ import annotations

import pytest

from smddp.container.contract import read_contract
from smddp.errors import JobError


def read(opt_ml):
    return read_contract({"SAGEMAKER_BASE_DIR": str(opt_ml.base)})


def test_parts_the_user_s_hyperparameters_from_the_platform_s(opt_ml):
    opt_ml.hyperparameters(lr=0.1, sagemaker_program="t.py", sagemaker_mpi_enabled=True, _tuning_objective_metric="acc")
    contract = read(opt_ml)
    assert contract.hyperparameters == {"lr": 0.1}
    assert contract.framework == {"sagemaker_mpi_enabled": True}
    assert contract.platform["sagemaker_program"] == "t.py"


def test_takes_bare_strings_as_they_are(opt_ml):
    opt_ml.config("hyperparameters", {"name": "resnet", "size": "3", "broken": "{"})
    assert read(opt_ml).hyperparameters == {"name": "resnet", "size": 3, "broken": "{"}


@pytest.mark.parametrize(
    ("hyperparameters", "said"),
    [
        ({"a=b": "1"}, "'a=b' can't be an environment variable and an option"),
        ({"a\0b": "1"}, r"'a\\x00b' can't be"),
        ({"a": '"b\\u0000c"'}, "The hyperparameter a holds the character"),
    ],
)
def test_hyperparameters_that_no_variable_can_hold_are_refused(opt_ml, hyperparameters, said):
    opt_ml.config("hyperparameters", hyperparameters)
    with pytest.raises(JobError, match=said):
        read(opt_ml)


def test_a_text_that_is_nested_too_deep_for_json_stays_a_text(opt_ml):
    deep = "[" * 1200 + "]" * 1200
    opt_ml.config("hyperparameters", {"x": deep})
    assert read(opt_ml).hyperparameters == {"x": deep}


def test_hyperparameters_and_channels_may_be_absent(opt_ml):
    contract = read(opt_ml)
    assert (contract.hyperparameters, contract.channels) == ({}, {})


def test_the_distribution_runs_on_the_groups_it_names(opt_ml):
    groups = [
        {"instance_group_name": "gpu", "instance_type": "ml.g5.xlarge", "hosts": ["algo-2", "algo-3"]},
        {"instance_group_name": "cpu", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
    ]
    opt_ml.hosts(["algo-1", "algo-2", "algo-3"], "algo-3", current_group_name="gpu", instance_groups=groups)
    opt_ml.hyperparameters(sagemaker_torch_distributed_enabled=True, sagemaker_distribution_instance_groups=["gpu"])
    contract = read(opt_ml)
    assert contract.distribution_hosts == ["algo-2", "algo-3"]
    assert contract.master_host == "algo-2"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("resourceconfig", "{", "resourceconfig.json is not JSON"),
        ("hyperparameters", "[1]", "must hold a JSON object, not list"),
        ("resourceconfig", "{}", "it must name this host"),
        ("resourceconfig", '{"hosts": ["algo-1"], "current_host": "algo-2"}', "current_host='algo-2'"),
    ],
)
def test_refuses_files_that_break_the_contract(opt_ml, name, text, message):
    (opt_ml.base / "input" / "config" / f"{name}.json").write_text(text)
    with pytest.raises(JobError, match=message):
        read(opt_ml)
