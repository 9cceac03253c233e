"""Names of distributions, and what the SDK would drop or ignore in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sagemaker.instance_group import InstanceGroup

from estimators import Estimator, distribution
from estimators.distribution import KINDS, NAMES
from estimators.errors import EstimatorError
from smddp.job.model_parallel import NAMES as SMP_NAMES
from tests.estimators.conftest import ROLE

SWITCHES = ("sm_activation_offloading", "fsdp_cache_flush_warnings", "allow_empty_shards")


def model_parallel(parameters: Any) -> dict[str, Any]:
    return {"smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}}


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
        {"torch_distributed": {"enabled": True}, **model_parallel(dict.fromkeys(SWITCHES, False))},
        {"torch_distributed": {"enabled": True}, **model_parallel({"hybrid_shard_degree": 0, "random_seed": -1})},
        {"torch_distributed": {"enabled": True}, "smdistributed": {"dataparallel": {"enabled": True}}},
        {"mpi": {"enabled": True}, "smdistributed": {"modelparallel": {"enabled": True, "parameters": {}}}},
        {"mpi": {"enabled": True}, **model_parallel({"partitions": 2, "tensor_parallel_degree": 2})},
        {"smdistributed": {"modelparallel": {"enabled": False, "parameters": {"no": 1}}}},
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


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"hybrid_shard_degre": 2}, "SMP v2 has no parameter 'hybrid_shard_degre'"),
        ({"partitions": 2}, "SMP v2 has no parameter 'partitions'"),
        ({"hybrid_shard_degree": "8"}, "hybrid_shard_degree is '8'"),
        ({"hybrid_shard_degree": True}, "hybrid_shard_degree is True"),
        ({"tensor_parallel_degree": 0}, "tensor_parallel_degree is 0"),
        ({"activation_loading_horizon": 1.5}, "activation_loading_horizon is 1.5"),
        ({"sm_activation_offloading": 1}, "sm_activation_offloading is 1"),
        ("no/such.json", "parameters of modelparallel is 'no/such.json'"),
        ([2], "parameters of modelparallel is [2]"),
        (None, "parameters of modelparallel is None"),
    ],
)
def test_a_parameter_that_modelparallel_does_not_take_is_an_error(parameters: Any, said: str) -> None:
    given = {"torch_distributed": {"enabled": True}, **model_parallel(parameters)}
    (problem,) = distribution.check(given)
    assert (problem.severity, said in problem.found) == ("error", True), problem
    assert distribution.model_parallel_parameters(given) is None


def test_the_parameters_of_modelparallel_may_be_a_file_as_in_the_sdk(tmp_path: Path) -> None:
    (tmp_path / "smp.json").write_text('{"hybrid_shard_degree": 4}')
    given = {"torch_distributed": {"enabled": True}, **model_parallel(str(tmp_path / "smp.json"))}
    assert not list(distribution.check(given))
    assert distribution.model_parallel_parameters(given) == {"hybrid_shard_degree": 4}
    (tmp_path / "smp.json").write_text("[4]")
    assert [problem.severity for problem in distribution.check(given)] == ["error"]


def test_modelparallel_needs_a_launcher_of_its_version() -> None:
    parameters = {"hybrid_shard_degree": 8}
    (problem,) = distribution.check(model_parallel(parameters))
    assert problem.found.startswith("modelparallel without torch_distributed: each host would run the script once")
    (problem,) = distribution.check({"mpi": {"enabled": True}, **model_parallel(parameters)})
    assert problem.found == "hybrid_shard_degree beside mpi: mpirun starts SMP v1, which has no such parameter"
    assert distribution.model_parallel_parameters({"mpi": {"enabled": True}, **model_parallel(parameters)}) is None


@pytest.mark.parametrize("options", [{}, {"parameters": {}}])
def test_modelparallel_without_parameters_is_warned_of_for_none_are_sent(options: dict[str, Any]) -> None:
    from sagemaker.fw_utils import get_mp_parameters

    library = {"smdistributed": {"modelparallel": {"enabled": True, **options}}}
    assert not get_mp_parameters(library)  # which the SDK then leaves out
    (problem,) = distribution.check({"torch_distributed": {"enabled": True}, **library})
    assert (problem.severity, problem.found.partition(":")[0]) == ("warning", "modelparallel has no parameters")


def test_the_parameters_of_modelparallel_are_those_of_the_installed_sdk() -> None:
    from sagemaker.modules.distributed import SMP

    assert set(SMP_NAMES) == set(SMP.model_fields)


DEGREES = [
    ({"hybrid_shard_degree": 8}, None),
    ({"hybrid_shard_degree": 0, "tensor_parallel_degree": 4}, None),
    ({"hybrid_shard_degree": 4, "tensor_parallel_degree": 4, "context_parallel_degree": 4}, None),
    ({"hybrid_shard_degree": 3}, "hybrid_shard_degree is 3, and 16 ranks are no multiple of that"),
    ({"hybrid_shard_degree": 32}, "hybrid_shard_degree is 32, and 16 ranks are no multiple of that"),
    ({"expert_parallel_degree": 6}, "expert_parallel_degree is 6, and 16 ranks are no multiple of that"),
    (
        {"hybrid_shard_degree": 8, "tensor_parallel_degree": 4},
        "hybrid_shard_degree × tensor_parallel_degree is 32, and 16 ranks are no multiple of that",
    ),
    (
        {"hybrid_shard_degree": 2, "context_parallel_degree": 4},
        "context_parallel_degree is 4, more than hybrid_shard_degree (2)",
    ),
]


@pytest.mark.parametrize(("parameters", "found"), DEGREES)
def test_degrees_divide_the_gpus_of_the_job(
    parameters: dict[str, Any], found: str | None, sagemaker_session: Any, script: str
) -> None:
    given = {"torch_distributed": {"enabled": True}, **model_parallel(parameters)}
    for hosts in (
        {"instance_type": "ml.p4d.24xlarge", "instance_count": 2},
        {"instance_preferences": ["ml.p4d.24xlarge", "ml.p4de.24xlarge"], "instance_count": 2},
        {
            "instance_type": "ml.m5.xlarge",
            "instance_count": 4,
            "image_uri": "mine",
            "hyperparameters": {"sagemaker_mpi_num_of_processes_per_host": 4},
        },
    ):
        job = {"role": ROLE, "distribution": given, **hosts}
        errors = Estimator(script, sagemaker_session=sagemaker_session, **job).plan().errors
        assert [problem.found for problem in errors] == ([] if found is None else [f"modelparallel: {found}"]), hosts


def test_instance_groups_beside_modelparallel_are_refused_by_the_sdk(sagemaker_session: Any, script: str) -> None:
    gpus = InstanceGroup("gpus", "ml.p4d.24xlarge", 2)
    given = {"torch_distributed": {"enabled": True}, **model_parallel({"hybrid_shard_degree": 8})}
    job = {"role": ROLE, "distribution": given, "instance_groups": [gpus]}
    (problem,) = Estimator(script, sagemaker_session=sagemaker_session, **job).plan().errors
    assert problem.found.startswith("the SDK refuses the job: Don't set training instance groups")


def test_degrees_of_a_type_that_the_sdk_does_not_know_are_not_judged(sagemaker_session: Any, script: str) -> None:
    given = {"torch_distributed": {"enabled": True}, **model_parallel({"hybrid_shard_degree": 3})}
    job = {"role": ROLE, "distribution": given, "image_uri": "mine", "instance_type": "ml.m5.xlarge"}
    assert not Estimator(script, sagemaker_session=sagemaker_session, **job).plan().errors
