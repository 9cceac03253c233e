"""docs/reference/estimator.md has a row for each parameter, with its default and the fields that it really changes."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from estimators import Estimator
from estimators.instances import BEYOND_PYTORCH
from estimators.request.code import upload_code
from estimators.request.completed_job import CompletedJob
from estimators.request.job_request import build
from estimators.sdk.adapter import adapter

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "estimator.md").read_text()
PARAMETERS, FIT = PAGE.split("## All parameters\n")[1].split("### What `fit` takes\n")
_ROW = re.compile(r"^\| `(\w+)` \| `(.+?)` \| (.+?) \| .+ \|$", re.MULTILINE)
_TIME = re.compile(r"-\d{4}(-\d\d){5}-\d{1,3}")
"""What the SDK puts after the base of a job's name."""

ROLE = "arn:aws:iam::123456789012:role/SageMaker"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"
OF_VERSION = {"image_uri": None, "framework_version": "2.6.0", "py_version": "py312"}
COMPILED = {**OF_VERSION, "framework_version": "1.13.1", "py_version": "py39", "instance_type": "ml.p3.2xlarge"}
VPC = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine"

Sample = tuple[Any, dict[str, Any]]
"""A value of a parameter, and what the job has beside it."""


def debugger(name: str, *arguments: Any) -> Any:
    import sagemaker.debugger

    return getattr(sagemaker.debugger, name)(*arguments)


def rule() -> Any:
    from sagemaker.debugger import Rule, rule_configs

    return Rule.sagemaker(rule_configs.overfit())


def groups(name: str) -> dict[str, Any]:
    from sagemaker.instance_group import InstanceGroup

    group = InstanceGroup(name, "ml.g5.xlarge", 1)
    return {"instance_groups": [group], "instance_type": None, "instance_count": None}


def compiler() -> Any:
    from sagemaker.pytorch import TrainingCompilerConfig

    return TrainingCompilerConfig()


MLFLOW = "arn:aws:sagemaker:us-west-2:123456789012:mlflow-tracking-server/mine"
SAMPLES: dict[str, Callable[[], Sample]] = {
    "entry_point": lambda: ("code/other.py", {}),
    "source_dir": lambda: ("s3://jobs/old/sourcedir.tar.gz", {"source_dir": "code", "entry_point": "train.py"}),
    "dependencies": lambda: (["library"], {}),
    "code_location": lambda: ("s3://elsewhere/code", {}),
    "hyperparameters": lambda: ({"lr": 0.1}, {}),
    "distribution": lambda: ({"mpi": {"enabled": True}}, {}),
    "framework_version": lambda: ("2.5.1", {**OF_VERSION, "framework_version": "2.4.0", "py_version": "py311"}),
    "py_version": lambda: ("py36", {**OF_VERSION, "framework_version": "1.8.1", "py_version": "py3"}),
    "image_uri": lambda: (IMAGE, OF_VERSION),
    "container_entry_point": lambda: (["train"], {}),
    "container_arguments": lambda: (["--fast"], {}),
    "container_log_level": lambda: (10, {}),
    "environment": lambda: ({"A": "1"}, {}),
    "training_repository_access_mode": lambda: ("Vpc", {}),
    "training_repository_credentials_provider_arn": lambda: (
        "arn:aws:lambda:us-west-2:123456789012:function:registry",
        {"training_repository_access_mode": "Vpc"},
    ),
    "compiler_config": lambda: (compiler(), COMPILED),
    "role": lambda: (f"{ROLE}2", {}),
    "instance_type": lambda: ("ml.c5.xlarge", {}),
    "instance_count": lambda: (2, {}),
    "instance_groups": lambda: (groups("one")["instance_groups"], groups("other")),
    "volume_size": lambda: (100, {}),
    "volume_kms_key": lambda: ("alias/volumes", {}),
    "keep_alive_period_in_seconds": lambda: (60, {}),
    "training_plan": lambda: (PLAN, {}),
    "instance_placement_config": lambda: ({"EnableMultipleJobs": True}, {}),
    "instance_preferences": lambda: (
        ["ml.g5.xlarge", {"instance_type": "ml.c5.large"}],
        {"instance_preferences": ["ml.m5.large"], "instance_type": None},
    ),
    "mlflow_config": lambda: ({"mlflow_resource_arn": MLFLOW}, {}),
    "subnets": lambda: (["subnet-2"], VPC),
    "security_group_ids": lambda: (["sg-2"], VPC),
    "encrypt_inter_container_traffic": lambda: (True, {}),
    "enable_network_isolation": lambda: (True, {}),
    "enable_infra_check": lambda: (True, {}),
    "enable_remote_debug": lambda: (True, {}),
    "enable_session_tag_chaining": lambda: (True, {}),
    "max_run": lambda: (60, {}),
    "use_spot_instances": lambda: (True, {}),
    "max_wait": lambda: (7200, {"use_spot_instances": True, "max_run": 60}),
    "max_retry_attempts": lambda: (2, {}),
    "input_mode": lambda: ("Pipe", {}),
    "output_path": lambda: ("s3://elsewhere/models", {}),
    "output_kms_key": lambda: ("alias/models", {}),
    "disable_output_compression": lambda: (True, {}),
    "model_uri": lambda: ("s3://jobs/old/model.tar.gz", {}),
    "model_channel_name": lambda: ("first", {"model_uri": "s3://jobs/old/model.tar.gz"}),
    "checkpoint_s3_uri": lambda: ("s3://jobs/checkpoints", {}),
    "checkpoint_local_path": lambda: ("/opt/ml/other", {"checkpoint_s3_uri": "s3://jobs/checkpoints"}),
    "metric_definitions": lambda: ([{"Name": "loss", "Regex": "loss=([0-9.]+)"}], {}),
    "enable_sagemaker_metrics": lambda: (False, {}),
    "rules": lambda: ([rule()], {}),
    "debugger_hook_config": lambda: (True, {}),
    "tensorboard_output_config": lambda: (debugger("TensorBoardOutputConfig", "s3://jobs/board"), {}),
    "profiler_config": lambda: (debugger("ProfilerConfig"), {}),
    "disable_profiler": lambda: (False, {}),
    "base_job_name": lambda: ("digits", {}),
    "tags": lambda: ({"team": "vision"}, {}),
    "inputs": lambda: ("s3://jobs/data", {}),
    "job_name": lambda: ("run-7", {}),
    "experiment_config": lambda: ({"ExperimentName": "digits"}, {}),
}
NOT_SENT_ALONE = {
    *("git_config", "training_recipe", "recipe_overrides"),  # a repository, and recipes: each replaces the job's code
    *("sagemaker_session", "wait", "logs", "prices", "max_cost", "rehearse", "on_event"),
}
OF_CALL = {"inputs", "job_name", "experiment_config"}


def rows(text: str) -> dict[str, tuple[str, str]]:
    """The default and the fields of each parameter."""
    found = _ROW.findall(text)
    assert len(found) == text.count("\n| `") == len({name for name, _, _ in found})
    return {name: (default, fields) for name, default, fields in found}


def fields_of(name: str) -> set[str]:
    return set(re.findall(r"`(.+?)`", rows(PARAMETERS + FIT)[name][1]))


def signature(*functions: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: parameter.default
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def defaults_of_pytorch() -> dict[str, Any]:
    from sagemaker.pytorch import PyTorch

    bases = [vars(base)["__init__"] for base in reversed(inspect.getmro(PyTorch)[:-1]) if "__init__" in vars(base)]
    return {**signature(*bases), **dict.fromkeys(BEYOND_PYTORCH)}


def shown(default: object) -> str:
    return repr(default).replace("'", '"')


def test_each_parameter_has_its_row_and_its_default() -> None:
    chosen = {name: value for name, value in Estimator(entry_point="x").arguments.items() if name != "entry_point"}
    defaults = {**defaults_of_pytorch(), **signature(Estimator.__init__), **chosen}
    assert defaults.keys() == adapter().parameter_names()
    assert {name: default for name, (default, _) in rows(PARAMETERS).items()} == {
        name: shown(default) for name, default in defaults.items()
    }


def test_each_parameter_of_fit_has_its_row_and_its_default() -> None:
    defaults = signature(Estimator.fit)
    assert {name: row[0] for name, row in rows(FIT).items()} == {name: shown(each) for name, each in defaults.items()}


def test_each_row_is_compared_with_what_is_sent() -> None:
    documented = {*rows(PARAMETERS), *rows(FIT)}
    assert SAMPLES.keys() | NOT_SENT_ALONE == documented
    assert {name for name in documented if fields_of(name)} <= SAMPLES.keys()


def members(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The request's members that are not structures, each with its path; the times in names are taken out."""
    if isinstance(value, Mapping) and value:
        for name, member in value.items():
            yield from members(member, f"{path}.{name}" if path else name)
    else:
        yield path, _TIME.sub("-TIME", json.dumps(value))


@pytest.fixture(scope="module")
def session(sagemaker_session: Any) -> Any:
    """One that has a second bucket."""
    sagemaker_session.boto_session.client("s3").create_bucket(Bucket="elsewhere")
    return sagemaker_session


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("code/train.py", "code/other.py", "library/layers.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.slow
def test_a_parameter_changes_the_fields_of_its_row(name: str, session: Any, requests: list[dict[str, Any]]) -> None:
    value, beside = SAMPLES[name]()
    common = {
        "entry_point": "code/train.py",
        "role": ROLE,
        "instance_type": "ml.m5.xlarge",
        "instance_count": 1,
        "image_uri": IMAGE,
        "framework_version": "2.6.0",
        "base_job_name": "mine",
        **beside,
    }
    for given in (common, {**common, name: value}):
        call = {key: given.get(key) for key in OF_CALL}
        job = CompletedJob.of(
            Estimator(**{key: each for key, each in given.items() if key not in OF_CALL}).arguments, session
        )
        request, _ = build(job.arguments, call.pop("inputs"), script=job.source.program, session=session, **call)
        assert request is not None
        sent = request.complete(partial(upload_code, job, session))
        session.sagemaker_client.create_training_job(**sent)
    without, with_it = (dict(members(request)) for request in requests[-2:])
    changed = {path for path in without.keys() | with_it.keys() if without.get(path) != with_it.get(path)}
    documented = fields_of(name)
    assert [path for path in changed if not any(is_within(path, field) for field in documented)] == []
    assert [field for field in documented if not any(is_within(path, field) for path in changed)] == []


def is_within(path: str, field: str) -> bool:
    return f"{path}.".startswith(f"{field}.")
