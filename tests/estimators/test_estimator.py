"""Building a job: parameters, plans, and what fit() refuses before anything is sent."""

from __future__ import annotations

import copy
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError

from estimators import Estimator
from estimators.errors import EstimatorError
from estimators.sdk import sessions

ROLE = "arn:aws:iam::123456789012:role/SageMaker"


@pytest.fixture
def build(script: str, sagemaker_session: Any) -> Any:
    def estimator(**parameters: Any) -> Estimator:
        common = {"role": ROLE, "instance_type": "ml.g5.xlarge", "sagemaker_session": sagemaker_session}
        return Estimator(parameters.pop("entry_point", script), **{**common, **parameters})

    return estimator


def parameters_of(problems: Any) -> list[str]:
    return [problem.parameter for problem in problems]


def test_an_unknown_parameter_is_refused_with_the_nearest(build: Any) -> None:
    with pytest.raises(EstimatorError, match=r"'volume_sise' is no parameter. Did you mean 'volume_size'"):
        build(volume_sise=3)


def test_every_parameter_of_the_installed_sdk_is_taken(build: Any) -> None:
    from estimators.sdk import v2

    assert {"volume_size", "code_location", "training_recipe"} <= v2.parameter_names()
    for name in v2.parameter_names() - {"entry_point", "role", "sagemaker_session"}:
        build(**{name: None})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("model_data", "The TrainingJob that fit() returns has model_data."),
        ("latest_training_job", "It is the TrainingJob that fit() returns."),
        ("role", "estimator.arguments['role']."),
    ],
)
def test_an_attribute_of_the_sdks_estimator_is_an_error_with_a_remedy(build: Any, name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=f"^the Estimator has no {name}\\. .*{re.escape(remedy)}$"):
        getattr(build(), name)


def test_an_unknown_attribute_is_an_ordinary_error_and_an_estimator_is_copied(build: Any) -> None:
    estimator = build()
    assert not hasattr(estimator, "nothing")
    assert copy.copy(estimator).arguments == estimator.arguments


def test_a_good_job_has_a_plan_without_problems(build: Any) -> None:
    plan = build(instance_count=4, distribution="torchrun").plan({"training": "s3://data/train"}, job_name="a-1")
    assert plan.problems == ()
    assert str(plan.topology) == "4 × ml.g5.xlarge, torchrun"


def test_the_processes_of_a_host_are_told_where_they_are_known(build: Any) -> None:
    mpi = build(distribution={"mpi": {"enabled": True, "processes_per_host": 8}}).plan()
    assert str(mpi.topology) == "1 × ml.g5.xlarge, mpirun, 8 processes on each"
    torchrun = build(distribution="torchrun", hyperparameters={"sagemaker_mpi_num_of_processes_per_host": 2}).plan()
    assert torchrun.topology.processes_per_host == 2


def test_instance_groups_are_part_of_the_topology(build: Any) -> None:
    from sagemaker.instance_group import InstanceGroup

    groups = [InstanceGroup("a", "ml.m5.xlarge", 1), InstanceGroup("b", "ml.g5.xlarge", 2)]
    plan = build(instance_type=None, instance_groups=groups).plan()
    assert str(plan.topology) == "1 × ml.m5.xlarge + 2 × ml.g5.xlarge, the script alone"
    assert not plan.errors
    assert parameters_of(build(instance_groups=groups).plan().errors) == ["instance_groups"]


@pytest.mark.parametrize("launcher", ["torch_distributed", "mpi"])
def test_only_the_hosts_of_the_groups_that_the_distribution_names_get_ranks(build: Any, launcher: str) -> None:
    from sagemaker.instance_group import InstanceGroup

    gpus, cpus = InstanceGroup("gpus", "ml.g5.xlarge", 2), InstanceGroup("cpus", "ml.m5.xlarge", 1)
    plan = build(
        instance_type=None,
        instance_groups=[gpus, cpus],
        distribution={launcher: {"enabled": True}, "instance_groups": [gpus]},
        hyperparameters={"sagemaker_mpi_num_of_processes_per_host": 4},
    ).plan()
    assert plan.errors == ()
    assert plan.topology.processes == 8
    assert " on gpus, 4 processes on each, 8 in all" in str(plan.topology)
    (warned,) = plan.warnings
    assert warned.found == "the hosts of cpus get no ranks: each runs the script once, by itself"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"hyperparameters": {"a=b": 1}}, "hyperparameters: 'a=b' can't be an environment variable"),
        ({"hyperparameters": {"a": "x\0y"}}, "hyperparameters: a holds the character U+0000, which no variable can."),
        (
            {"hyperparameters": {"sagemaker_mpi_num_of_processes_per_host": "two"}},
            "hyperparameters: sagemaker_mpi_num_of_processes_per_host='two' must be a whole number, 1 or more.",
        ),
        ({"environment": {"SMDDP_MAX_RESTARTS": "x"}}, "environment: SMDDP_MAX_RESTARTS='x' must be a whole number"),
        ({"environment": {"SMDDP_MASTER_PORT": "99999"}}, "environment: SMDDP_MASTER_PORT='99999' must be a TCP port"),
    ],
)
def test_what_the_container_would_refuse_is_said_before(build: Any, parameters: Any, said: str) -> None:
    (problem,) = build(**parameters, distribution="torchrun").plan().errors
    assert str(problem).startswith(said)


def test_smddp_is_refused_on_groups_of_instances_without_it(build: Any) -> None:
    from sagemaker.instance_group import InstanceGroup

    cpu, gpu = InstanceGroup("a", "ml.m5.xlarge", 1), InstanceGroup("b", "ml.p4d.24xlarge", 2)

    def errors(group: InstanceGroup) -> list[str]:
        distribution = {"smdistributed": {"dataparallel": {"enabled": True}}, "instance_groups": [group]}
        plan = build(instance_type=None, instance_groups=[cpu, gpu], distribution=distribution).plan()
        return [problem.found for problem in plan.errors]

    assert errors(cpu) == ["SMDDP does not run on ml.m5.xlarge"]
    assert errors(gpu) == []


def test_smddp_may_be_tried_in_local_mode_where_it_is_missing(build: Any) -> None:
    parameters = {"image_uri": "training", "distribution": "smdistributed", "sagemaker_session": None}
    plan = build(instance_type="local", **parameters).plan()
    assert not plan.errors
    assert "SMDDP is only in AWS's images for P4d and P4de" in [problem.found for problem in plan.warnings]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"metric_definitions": ["loss"]}, "metric_definitions: [0] is 'loss', of type str. Give a dict."),
        ({"distribution": {"torch_distributed": True}}, "distribution: torch_distributed is True, not a dict."),
        ({"instance_type": 3}, "instance_type: is 3, of type int. Give text."),
        ({"environment": {"A": None}}, "environment: ['A'] is None, of type NoneType. Give text."),
        ({"tags": {"x": None}}, "tags: ['x'] is None, and the SDK would send the text 'None'. Give text, '' for a tag"),
        ({"tags": {None: "x"}}, "tags: [None] is 'x', and the SDK would send the text 'None'. Give text, '' for a tag"),
        ({"tags": {"x": ["a"]}}, "tags: [0]['Value'] \"['a']\" is not of the form"),
    ],
)
def test_a_value_of_a_wrong_type_is_a_problem_like_any_other(build: Any, parameters: Any, said: str) -> None:
    (problem,) = build(**parameters).plan().errors
    assert str(problem).startswith(said)


def test_a_module_of_awss_is_in_the_image_for_its_distribution(build: Any, script: str) -> None:
    Path(script).write_text("import smdistributed.dataparallel.torch.torch_smddp\n")
    job = {"instance_type": "ml.p4d.24xlarge", "framework_version": "2.0.1", "py_version": "py310"}
    assert "smdistributed is imported" not in str(build(**job, distribution="smdistributed").plan())
    assert "Only AWS's images for it have it" in str(build(**job, distribution="torchrun").plan())


@pytest.mark.parametrize("distribution", [None, "torchrun", "smdistributed"])
@pytest.mark.parametrize("parameter", ["instance_type", "instance_preferences", "instance_groups"])
def test_an_instance_type_without_its_prefix_is_one_problem(build: Any, parameter: str, distribution: Any) -> None:
    from sagemaker.instance_group import InstanceGroup

    hosts = {
        "instance_type": "p4d.24xlarge",
        "instance_preferences": ["p4d.24xlarge"],
        "instance_groups": [InstanceGroup("a", "p4d.24xlarge", 1)],
    }
    plan = build(**{"instance_type": None, parameter: hosts[parameter]}, distribution=distribution).plan()
    assert [str(problem) for problem in plan.problems] == [
        f"{parameter}: 'p4d.24xlarge' is no type of SageMaker's. Did you mean 'ml.p4d.24xlarge'?"
    ]


@pytest.mark.parametrize("name", ["entry_point", "source_dir", "dependencies"])
@pytest.mark.parametrize("value", [3, "", b"train.py"])
def test_what_is_no_path_is_named_with_its_parameter(build: Any, name: str, value: Any) -> None:
    with pytest.raises(EstimatorError, match=f"^{name} has .*no path. Give a text that is not empty"):
        build(**{name: [value] if name == "dependencies" else value})


def test_dependencies_are_a_list(build: Any) -> None:
    with pytest.raises(EstimatorError, match=r"dependencies is one path, 'lib'. Give a list"):
        build(dependencies="lib")


SPOT: dict[str, Any] = {"use_spot_instances": True, "max_run": 600, "max_wait": 1200}
CHECKPOINTS = {"checkpoint_s3_uri": "s3://jobs/checkpoints"}


@pytest.mark.parametrize(
    ("parameters", "errors", "warnings"),
    [
        ({**SPOT, **CHECKPOINTS}, [], []),
        (SPOT, [], ["checkpoint_s3_uri"]),
        ({**SPOT, **CHECKPOINTS, "max_wait": None}, ["max_wait"], []),
        ({**SPOT, **CHECKPOINTS, "max_wait": 599}, ["max_wait"], []),
        ({"max_run": 600, "max_wait": 1200}, ["max_wait"], []),
        ({"max_run": 29 * 24 * 3600}, ["max_run"], []),
        ({"max_run": 0}, ["max_run"], []),
        ({"role": None}, ["role"], []),
        ({"role": "SageMakerRole"}, [], []),
        ({"role": "arn:aws:iam::12:role/x"}, ["role"], []),
        ({"instance_type": None}, ["instance_type"], []),
        ({"instance_type": "ml.g9.xlarge", "image_uri": "mine"}, [], ["instance_type"]),
        ({"instance_type": "ml.g5.xlage", "image_uri": "mine"}, ["instance_type"], []),
        ({"instance_type": "g5.xlarge", "image_uri": "mine"}, ["instance_type"], []),
        ({"instance_count": 0}, ["instance_count"], []),
        ({**SPOT, **CHECKPOINTS, "keep_alive_period_in_seconds": 60}, ["keep_alive_period_in_seconds"], []),
        ({"checkpoint_s3_uri": "/opt/ml/checkpoints"}, ["checkpoint_s3_uri"], []),
        ({"checkpoint_s3_uri": "s3://jobs"}, [], ["checkpoint_s3_uri"]),
        ({"checkpoint_s3_uri": "s3://data/train/"}, ["checkpoint_s3_uri"], []),
        ({"checkpoint_s3_uri": "s3://data/train/run-7"}, [], ["checkpoint_s3_uri"]),
        ({"checkpoint_s3_uri": "s3://data/training"}, [], ["checkpoint_s3_uri"]),
        ({"output_path": "s3://jobs/a/b", "checkpoint_s3_uri": "s3://jobs/a"}, ["checkpoint_s3_uri"], []),
        ({"output_path": "s3://jobs/a", "checkpoint_s3_uri": "s3://jobs/a/run-7"}, [], []),
        ({"metric_definitions": [{"Name": "loss", "Regex": "loss=("}]}, ["metric_definitions"], []),
        ({"metric_definitions": [{"Name": "loss", "Regex": "loss=.+"}]}, ["metric_definitions"], []),
        ({"metric_definitions": [{"Name": "loss", "Regex": "(\\p{Digit}+)"}]}, [], ["metric_definitions"]),
        ({"hyperparameters": {"data": Path("/tmp")}}, ["hyperparameters"], []),
        ({"hyperparameters": {"text": "x" * 2499}}, ["hyperparameters"], []),
        ({"environment": {"A": "x" * 513}}, ["environment"], []),
        ({"tags": {"a": "x" * 257}}, ["tags"], []),
        ({"tags": {"a": "", "b": 7}}, [], []),
        ({"entry_point": None}, ["entry_point"], []),
        ({"entry_point": "nowhere.py"}, ["entry_point"], []),
        ({"distribution": {"horovod": {"enabled": True}}}, ["distribution"], []),
        ({"distribution": "parameter_server"}, [], ["distribution"]),
        ({"distribution": "smdistributed"}, ["distribution"], []),
        ({"distribution": "smdistributed", "instance_type": "ml.p4d.24xlarge"}, [], []),
        (
            {"distribution": "pytorchddp", "framework_version": "2.8.0", "py_version": "py312"},
            ["distribution", "framework_version"],
            [],
        ),
        ({"distribution": "torchrun", "instance_type": "ml.m5.xlarge"}, ["distribution"], []),
        ({"distribution": "torchrun", "instance_type": "ml.m5.xlarge", "image_uri": "mine"}, [], []),
        ({"distribution": "torchrun", "framework_version": "2.8", "py_version": "py312"}, ["framework_version"], []),
        ({"framework_version": "9.9.9"}, ["framework_version"], []),
        ({"framework_version": "2.6.0"}, [], []),
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.slow
def test_what_is_wrong_is_found(build: Any, parameters: Any, errors: list[str], warnings: list[str]) -> None:
    plan = build(**parameters).plan({"training": "s3://data/train"})
    assert (parameters_of(plan.errors), parameters_of(plan.warnings)) == (errors, warnings), str(plan)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({**SPOT, **CHECKPOINTS, "max_wait": None}, "a spot job must say how long it may take, waiting included"),
        ({"metric_definitions": [{"Name": "loss", "Regex": r"(\p{Digit}+)"}]}, "loss: Python can't compile"),
    ],
)
def test_what_is_wrong_is_told_in_words(build: Any, parameters: Any, said: str) -> None:
    assert said in str(build(**parameters).plan())


@pytest.mark.parametrize(
    ("inputs", "errors", "said"),
    [
        ("s3://data/train", [], ""),
        ("dta", ["inputs['training']"], "'dta' is not an S3 URI. Here is no such file, either (looked in "),
        ("/etc/hosst", ["inputs['training']"], "Did you mean /etc/hosts? Upload it, and give the s3:// URI"),
        ("s3:/data/train", ["inputs['training']"], "Did you mean 's3://data/train'?"),
        ({"train": "/etc"}, ["inputs['train']"], "It is on this machine. Upload it, and give the s3:// URI"),
        ({"train": "/etc"}, ["inputs['train']"], "or aws s3 cp --recursive /etc s3://bucket/etc"),
        ({"train": "/etc/hosts"}, ["inputs['train']"], "or aws s3 cp /etc/hosts s3://bucket/hosts"),
        ({"train": "file:///data"}, ["inputs['train']"], "sagemaker_session.upload_data('/data')"),
        ({"tr ain": "s3://data"}, ["inputs"], "'tr ain'"),
        ({f"c{number}": "s3://data" for number in range(21)}, ["inputs"], "The most is 20"),
    ],
)
def test_channels_are_checked(build: Any, inputs: Any, errors: list[str], said: str) -> None:
    plan = build().plan(inputs)
    assert parameters_of(plan.errors) == errors
    assert said in str(plan)


def test_fit_lists_all_errors_at_once_and_sends_nothing(build: Any, requests: list[dict[str, Any]]) -> None:
    with pytest.raises(EstimatorError) as refused:
        build(entry_point="nowhere.py", max_wait=3, environment={"A-B": ""}).fit("./data")
    assert parameters_of(refused.value.problems) == ["max_wait", "entry_point", "inputs['training']", "environment"]
    for problem in refused.value.problems:
        assert str(problem) in str(refused.value)
    assert not requests


def test_an_error_hides_no_other_of_the_request(build: Any) -> None:
    """The rules between the members of a request are checked in spite of a wrong path and a member of a wrong form."""
    plan = build(
        source_dir="/nonexistent", entry_point="train.py", tags={"aws:team": "vision"}, volume_kms_key="alias/key"
    ).plan(job_name="no_name")
    assert parameters_of(plan.errors) == ["source_dir", "job_name", "volume_kms_key", "tags"]
    assert plan.unchecked == ("the script, with its hyperparameters, channels and imports",)
    assert (plan.request, plan.resources) == (None, None)


@pytest.mark.parametrize(
    ("parameters", "inputs", "errors", "unchecked"),
    [
        ({"role": "no role"}, None, ["role", "tags"], ()),
        ({"role": None}, None, ["role", "tags"], ()),
        ({"instance_type": "ml.g5.xlarge2"}, None, ["instance_type", "tags"], ("AWS's rules for ResourceConfig",)),
        ({"instance_count": 0}, None, ["instance_count", "tags"], ("AWS's rules for ResourceConfig",)),
        ({"distribution": {"torchran": {"enabled": True}}}, None, ["distribution", "tags"], ()),
        ({"distribution": {"pytorchddp": {"enabled": True}}, "instance_type": "ml.m5.xlarge"}, None, None, ()),
        ({"max_wait": 3}, None, ["max_wait", "tags"], ("AWS's rules for StoppingCondition",)),
        ({"use_spot_instances": "yes", "max_wait": 90000}, None, None, ("AWS's rules for EnableManagedSpotTraining",)),
        ({"subnets": ["no subnet!"], "security_group_ids": ["sg-1"]}, None, ["subnets", "tags"], ()),
        (
            {"subnets": ["no subnet!"], "security_group_ids": ["sg-1"], "training_repository_access_mode": "Vpc"},
            None,
            ["subnets", "tags"],
            ("AWS's rules for VpcConfig",),
        ),
        ({}, "./data", ["inputs['training']", "tags"], ("AWS's rules for InputDataConfig",)),
        ({}, ["s3://data"], ["inputs", "tags"], ("AWS's rules for InputDataConfig",)),
        ({"environment": {"A-B": ""}}, None, ["environment", "tags"], ()),
        ({"environment": {"A-B": ""}}, {}, ["environment", "inputs", "tags"], ("AWS's rules for InputDataConfig",)),
    ],
    ids=repr,
)
def test_rules_that_read_no_wrong_parameter_are_judged_and_the_others_are_named(
    build: Any, parameters: dict[str, Any], inputs: Any, errors: list[str] | None, unchecked: tuple[str, ...]
) -> None:
    plan = build(**parameters, tags={"aws:team": "vision"}).plan(inputs)
    assert parameters_of(plan.errors)[-1] == "tags"
    assert errors is None or parameters_of(plan.errors) == errors
    assert plan.unchecked == unchecked


def test_a_request_that_can_not_be_built_is_told_as_unchecked(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimators.plan.checked_request.build", lambda *_, **__: (None, "no such parameter"))
    with pytest.raises(
        EstimatorError,
        match=r"(?s)one thing is wrong with the job:\n  - max_wait.*\nNot checked until it is corrected: the request "
        r"as a whole, the data and buckets on S3\.$",
    ) as refused:
        build(max_wait=3).fit()
    assert parameters_of(refused.value.problems) == ["max_wait"]
    assert "not checked because of the errors: the request as a whole" in str(build(max_wait=3).plan())


def test_a_job_that_aws_throttles_is_sent_again(
    build: Any, requests: list[dict[str, Any]], sagemaker_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, refusals = sagemaker_session.sagemaker_client.create_training_job, [throttled()]

    def refuse_first(**request: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return create(**request)

    monkeypatch.setattr(sagemaker_session.sagemaker_client, "create_training_job", refuse_first)
    build().fit(wait=False)
    assert not refusals
    assert len(requests) == 1


def throttled() -> ClientError:
    return refused("ThrottlingException", "Rate exceeded", "CreateTrainingJob")


def refused(code: str, message: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


@pytest.mark.parametrize(
    ("of", "call", "error", "said"),
    [
        (
            "sagemaker_client",
            "create_training_job",
            refused("ResourceLimitExceeded", "300 hosts", "CreateTrainingJob"),
            r"^digits was not started: ResourceLimitExceeded \(300 hosts\); use fewer instances",
        ),
        (
            None,
            "default_bucket",
            refused("AccessDenied", "no", "CreateBucket"),
            r"^The job was not sent: the session's default bucket can't be used: .*AccessDenied.*Give output_path",
        ),
    ],
    ids=["the job", "the default bucket"],
)
def test_what_aws_refuses_after_the_checks_is_an_error_of_the_estimator(
    build: Any,
    sagemaker_session: Any,
    monkeypatch: pytest.MonkeyPatch,
    of: str | None,
    call: str,
    error: Any,
    said: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(getattr(sagemaker_session, of) if of else sagemaker_session, call, fail)
    with pytest.raises(EstimatorError, match=said) as raised:
        build().fit(job_name="digits")
    assert raised.value.__cause__ is error


def test_a_source_of_a_rule_that_s3_refuses_is_an_error_of_the_estimator(
    sagemaker_session: Any, tmp_path: Path
) -> None:
    place = {"path": str(tmp_path), "bucket": "no-such-bucket-anywhere", "key_prefix": "rules"}
    (tmp_path / "rule.py").touch()
    said = r"^The job was not sent: .* can't be uploaded to s3://no-such-bucket-anywhere: .*NoSuchBucket"
    with pytest.raises(EstimatorError, match=said):
        sessions.upload(sagemaker_session, place)


@pytest.mark.slow
def test_fit_says_warnings_and_goes_on(
    build: Any, requests: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    build(**SPOT).fit(wait=False)
    assert "starts from the beginning" in caplog.text
    assert len(requests) == 1


def test_the_chosen_versions_are_logged(build: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    build(distribution="pytorchddp", instance_type="ml.p4d.24xlarge").to_sagemaker()
    assert "using PyTorch 2.2.0" in caplog.text
    caplog.clear()
    build(framework_version="2.6.0", py_version="py312").to_sagemaker()
    assert "using PyTorch" not in caplog.text


def test_a_plan_touches_no_network(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", refuse)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    build(**SPOT, distribution="torchrun", sagemaker_session=None).plan({"training": "s3://data/train"})


def test_a_missing_region_is_said(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    (problem,) = build(sagemaker_session=None).plan().errors
    assert (problem.parameter, problem.found) == ("sagemaker_session", "no AWS region is configured")
    assert "sagemaker_session=platform.session" in problem.remedy


def test_a_misspelt_region_is_told_as_such(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-est-1")
    (problem,) = build(sagemaker_session=None).plan().errors
    assert problem.parameter == "sagemaker_session"
    assert "us-est-1" in problem.found and "'us-east-1'" in problem.remedy


@dataclass
class Config:
    lr: float = 0.1
    sizes: list[int] = field(default_factory=lambda: [32, 16])
    name: str = "1e3"


def test_missing_credentials_are_said(build: Any, sagemaker_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NoCredentialsError

    monkeypatch.setattr(sagemaker_session.sagemaker_client, "create_training_job", fail)
    with pytest.raises(
        EstimatorError, match=r"^The job was not sent: .*credentials\. Sign in .* LocalSageMaker\(\)"
    ) as told:
        build().fit()
    assert told.value.__suppress_context__  # else Python shows botocore's frames first


def test_a_dataclass_is_sent_as_the_script_reads_it(build: Any, requests: list[dict[str, Any]]) -> None:
    from smddp.job.hyperparameters import decode

    build(hyperparameters=Config(lr=3e-4)).fit(wait=False)
    sent = requests[0]["HyperParameters"]
    assert {name for name in sent if not name.startswith("sagemaker_")} == {"lr", "sizes", "name"}
    assert decode(Config, {name: sent[name] for name in ("lr", "sizes", "name")}) == Config(lr=3e-4)


@pytest.mark.slow
def test_the_bundle_of_a_script_that_imports_smddp_goes_away(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: list[dict[str, Any]]
) -> None:
    (tmp_path / "staging").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "staging"))
    (tmp_path / "code" / "train.py").write_text("import smddp\n")
    build().fit(wait=False)
    assert requests[0]["HyperParameters"]["sagemaker_program"] == '"train.py"'
    assert not list((tmp_path / "staging").iterdir())
    pytorch = build().to_sagemaker()
    assert Path(pytorch.source_dir, "smddp", "__init__.py").exists()
    staged = pytorch.source_dir
    del pytorch
    assert not Path(staged).exists()


def test_what_only_the_sdk_refuses_is_an_error_of_ours(build: Any) -> None:
    with pytest.raises(EstimatorError, match="subnets and security_group_ids"):
        build(subnets=["subnet-1"]).fit(wait=False)


def test_debugging_by_choice_turns_our_defaults_off(build: Any) -> None:
    from sagemaker.debugger import ProfilerConfig, Rule, rule_configs

    safe = {"debugger_hook_config", "disable_profiler"}
    profiled = build(profiler_config=ProfilerConfig())
    assert safe & profiled.arguments.keys() == {"debugger_hook_config"}
    profiled.to_sagemaker()
    watched = build(rules=[Rule.sagemaker(rule_configs.loss_not_decreasing())])
    assert not safe & watched.arguments.keys()
    watched.to_sagemaker()
    assert safe <= build().arguments.keys()
