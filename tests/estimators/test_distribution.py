"""Names of distributions, and what the SDK would drop or ignore in silence."""

from __future__ import annotations

from typing import Any

import pytest
from sagemaker.instance_group import InstanceGroup

from estimators import distribution
from estimators.distribution import KINDS, NAMES
from estimators.errors import EstimatorError


@pytest.mark.parametrize("name", NAMES)
def test_every_name_stands_for_a_distribution_without_errors(name: str) -> None:
    given = distribution.from_name(name)
    assert not [problem for problem in distribution.check(given) if problem.severity == "error"]
    assert distribution.enabled_kinds(given)


def test_a_dict_stays_as_it_is() -> None:
    given = {"mpi": {"enabled": True, "processes_per_host": 8}}
    assert distribution.from_name(given) == given
    assert distribution.processes_per_host(given) == 8
    assert not list(distribution.check(given))


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(EstimatorError, match="Did you mean 'torchrun'"):
        distribution.from_name("torch_run")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"torchrun": {"enabled": True}}, "ignores the key 'torchrun'"),
        ({"mpi": {"enabled": True, "process_per_host": 8}}, "ignores process_per_host of mpi"),
        ({"mpi": {"processes_per_host": 8}}, "mpi has no 'enabled'"),
        ({"mpi": True}, "not a dict"),
        ({"mpi": {"enabled": "yes"}}, "'enabled' of mpi is 'yes'"),
        ({"torch_distributed": {"enabled": 1}}, "'enabled' of torch_distributed is 1"),
        ({"smdistributed": {"dataparallel": {"enabled": "no"}}}, "'enabled' of smdistributed.dataparallel is 'no'"),
        ({"mpi": {"enabled": True, "processes_per_host": -1}}, "processes_per_host of mpi is -1"),
        ({"mpi": {"enabled": True, "processes_per_host": 0}}, "processes_per_host of mpi is 0"),
        ({"mpi": {"enabled": True, "processes_per_host": "x"}}, "processes_per_host of mpi is 'x'"),
        ({"mpi": {"enabled": True, "processes_per_host": True}}, "processes_per_host of mpi is True"),
        ({"mpi": {"enabled": True}, "torch_distributed": {"enabled": True}}, "mpi beside torch_distributed"),
        (
            {"torch_distributed": {"enabled": True}, "mpi": {"enabled": False, "processes_per_host": 4}},
            "processes_per_host of mpi does nothing",
        ),
        (
            {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_option": "-x A"}}},
            "ignores custom_mpi_option of smdistributed.dataparallel",
        ),
        ({"torch_distributed": {"enabled": True}, "instance_groups": ["gpus"]}, "instance_groups is ['gpus']"),
        ({"torch_distributed": {"enabled": True}, "instance_groups": "gpus"}, "instance_groups is 'gpus'"),
        (
            {"mpi": {"enabled": True}, "smdistributed": {"dataparallel": {"enabled": True}}},
            "mpi beside smdistributed",
        ),
        (
            {"pytorchddp": {"enabled": True}, "smdistributed": {"dataparallel": {"enabled": True}}},
            "pytorchddp beside smdistributed",
        ),
    ],
)
def test_what_the_sdk_would_drop_or_not_understand_is_an_error(given: dict[str, Any], said: str) -> None:
    problems = list(distribution.check(given))
    assert any(problem.severity == "error" and said in problem.found for problem in problems), problems


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"torch_distributed": {"enabled": False}},
        {"torch_distributed": {"enabled": True}, "smdistributed": {"modelparallel": {"enabled": True}}},
        {"torch_distributed": {"enabled": True}, "smdistributed": {"dataparallel": {"enabled": True}}},
        {"mpi": {"enabled": True}, "smdistributed": {"modelparallel": {"enabled": True, "parameters": {}}}},
        {"mpi": {"enabled": True}, "torch_distributed": {"enabled": False}},
        {"mpi": {"enabled": True}, "instance_groups": [InstanceGroup("gpus", "ml.g5.xlarge", 2)]},
    ],
)
def test_what_works_is_not_complained_of(given: dict[str, Any] | None) -> None:
    assert not list(distribution.check(given))


def test_parameter_server_is_warned_of() -> None:
    (problem,) = distribution.check(distribution.from_name("parameter_server"))
    assert problem.severity == "warning"


@pytest.mark.parametrize("key", [*KINDS, "no_such_distribution"])
def test_the_kinds_are_those_that_the_installed_sdk_acts_upon(key: str, sagemaker_session: Any, script: str) -> None:
    from sagemaker.pytorch import PyTorch, TrainingCompilerConfig

    options: dict[str, Any] = {"enabled": True}
    common: dict[str, Any] = {"instance_type": "ml.p3.16xlarge", "framework_version": "1.13.1", "py_version": "py39"}
    emitted = []
    for given in ({}, {key: {"dataparallel": options} if key == "smdistributed" else options}):
        estimator = PyTorch(
            script,
            **common,
            role="arn:aws:iam::123456789012:role/SageMaker",
            instance_count=1,
            distribution=given or None,
            compiler_config=TrainingCompilerConfig() if key == "pytorchxla" else None,
            sagemaker_session=sagemaker_session,
        )
        emitted.append(estimator.hyperparameters())
    assert (emitted[0] != emitted[1]) == (key in KINDS)
