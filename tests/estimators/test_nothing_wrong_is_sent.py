"""What AWS would refuse after the upload is refused before it, by plan(); what AWS takes, or may take, goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.endpoint import Endpoint
from botocore.exceptions import EndpointConnectionError, InvalidRegionError, ProxyConnectionError

from estimators import Estimator
from estimators.errors import EstimatorError
from estimators.plan import Plan

ROLE = "arn:aws:iam::123456789012:role/SageMaker"
REGISTRY = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
VPC = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}
MODEL = {"model_uri": "s3://jobs/run-6/output/model.tar.gz"}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job, and what fit() is called with."""

    parameters: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)

    def estimator(self, script: str, session: Any) -> Estimator:
        common = {"entry_point": script, "role": ROLE, "instance_type": "ml.m5.xlarge", "sagemaker_session": session}
        return Estimator(**{name: value for name, value in {**common, **self.parameters}.items() if value is not None})

    def plan(self, script: str, session: Any) -> Plan:
        call = dict(self.call)
        return self.estimator(script, session).plan(call.pop("inputs", None), **call)


Case = Callable[[], Job]


def job(**parameters: Any) -> Case:
    return lambda: Job(parameters=parameters)


def called(**call: Any) -> Case:
    return lambda: Job(call=call)


def image(name: str, **parameters: Any) -> Case:
    return job(image_uri=f"{REGISTRY}/{name}", **parameters)


def channel(*, job: dict[str, Any] | None = None, **options: Any) -> Case:
    def case() -> Job:
        from sagemaker.inputs import TrainingInput

        return Job(parameters=job or {}, call={"inputs": {"train": TrainingInput("s3://data/train", **options)}})

    return case


def file_system(**parameters: Any) -> Case:
    def case() -> Job:
        from sagemaker.inputs import FileSystemInput

        place = FileSystemInput("fs-01234567", "FSxLustre", "/data", "ro")
        return Job(parameters=parameters, call={"inputs": {"train": place}})

    return case


def groups(*members: tuple[str, str, int], channel_for: str | None = None, **parameters: Any) -> Case:
    def case() -> Job:
        from sagemaker.inputs import TrainingInput
        from sagemaker.instance_group import InstanceGroup

        given = {"instance_type": None, "instance_groups": [InstanceGroup(*member) for member in members]}
        call = {"inputs": TrainingInput("s3://data", instance_groups=[channel_for])} if channel_for else {}
        return Job(parameters={**given, **parameters}, call=call)

    return case


def debugger(parameter: str, kind: str, **options: Any) -> Case:
    def case() -> Job:
        import sagemaker.debugger

        return Job(parameters={parameter: getattr(sagemaker.debugger, kind)(**options)})

    return case


def tensorboard(uri: str) -> Case:
    return debugger("tensorboard_output_config", "TensorBoardOutputConfig", s3_output_path=uri)


def hook(uri: str) -> Case:
    return debugger("debugger_hook_config", "DebuggerHookConfig", s3_output_path=uri)


def profiler(**options: Any) -> Case:
    return debugger("profiler_config", "ProfilerConfig", **options)


def hyperparameters(count: int) -> Case:
    return job(hyperparameters={f"h{number}": number for number in range(count)})


GPU, CPU = "ml.g5.xlarge", "ml.m5.xlarge"

REFUSED: dict[str, tuple[Case, str, str]] = {
    "a name of base_job_name with _": (job(base_job_name="a_b"), "base_job_name", "'a_b-"),
    "a name of base_job_name with a space": (job(base_job_name="a b"), "base_job_name", "'a b-"),
    "a name of an image with _": (image("my_image:1"), "base_job_name", "or the image's name"),
    "a name of a digest": (image(f"mine@sha256:{'0' * 64}"), "base_job_name", "'mine@sha256-"),
    "98 hyperparameters": (hyperparameters(98), "hyperparameters", "The SDK adds some of its own"),
    "a tag twice": (job(tags=[{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]), "tags", "a comes more than"),
    "a tag of AWS's": (job(tags={"aws:team": "1"}), "tags", "reserved for AWS"),
    "a manifest in FastFile": (
        channel(s3_data_type="ManifestFile", input_mode="FastFile"),
        "inputs['train']",
        "FastFile mode must use a S3DataType of S3Prefix",
    ),
    "a manifest in a job of FastFile": (
        channel(s3_data_type="ManifestFile", job={"input_mode": "FastFile"}),
        "inputs['train']",
        "FastFile mode must use a S3DataType of S3Prefix",
    ),
    "an augmented manifest in File": (
        channel(s3_data_type="AugmentedManifestFile", attribute_names=["image"]),
        "inputs['train']",
        "can only be used in Pipe mode",
    ),
    "an augmented manifest without names": (
        channel(s3_data_type="AugmentedManifestFile", input_mode="Pipe"),
        "inputs['train']",
        "without AttributeNames",
    ),
    "names without an augmented manifest": (
        channel(attribute_names=["image"]),
        "inputs['train']",
        "only for Augmented",
    ),
    "RecordIO in File": (channel(record_wrapping="RecordIO"), "inputs['train']", "RecordIO is only for Pipe mode"),
    "Gzip in File": (channel(compression="Gzip"), "inputs['train']", "Gzip is only for Pipe mode"),
    "Gzip in FastFile": (
        channel(compression="Gzip", input_mode="FastFile"),
        "inputs['train']",
        "Gzip is only for Pipe mode",
    ),
    "a channel of no group": (groups(("a", GPU, 1), channel_for="b"), "inputs['training']", "groups are a."),
    "a channel of a group where there is none": (
        channel(instance_groups=["b"]),
        "inputs['train']",
        "leave InstanceGroupNames out",
    ),
    "six groups": (groups(*((f"g{number}", GPU, 1) for number in range(6))), "instance_groups", "has 6 entries"),
    "two groups of one name": (groups(("a", GPU, 1), ("a", CPU, 1)), "instance_groups", "a comes more than once"),
    "a group of no instances": (groups(("a", GPU, 1), ("b", GPU, 0)), "instance_groups", "of the group b is 0"),
    "groups in a warm pool": (
        groups(("a", GPU, 1), keep_alive_period_in_seconds=60),
        "keep_alive_period_in_seconds",
        "instance groups can't be kept",
    ),
    "groups that are dicts": (
        job(instance_type=None, instance_groups=[{"InstanceGroupName": "a", "InstanceCount": 1}]),
        "instance_groups",
        "sagemaker.instance_group.InstanceGroup",
    ),
    "a file system without a VPC": (file_system(), "inputs['train']", "the job is in no VPC"),
    "a bad name of the model's channel": (
        job(**MODEL, model_channel_name="a b"),
        "model_channel_name",
        "'a b' is not of the form",
    ),
    "the model's channel twice": (
        lambda: Job(parameters={**MODEL, "model_channel_name": "a"}, call={"inputs": {"a": "s3://data"}}),
        "sagemaker",
        "Duplicate channel a",
    ),
    "the model's default channel twice": (
        lambda: Job(parameters=MODEL, call={"inputs": {"model": "s3://data"}}),
        "sagemaker",
        "Duplicate channel model",
    ),
    "an unknown key of an experiment": (
        called(experiment_config={"Experiment": "a"}),
        "experiment_config",
        "Did you mean 'ExperimentName'",
    ),
    "a long name of an experiment": (
        called(experiment_config={"ExperimentName": "a" * 121}),
        "experiment_config",
        "has 121 characters",
    ),
    "an experiment that is a text": (called(experiment_config="digits"), "experiment_config", "Give a dict"),
    "TensorBoard on this machine": (tensorboard("/tensorboard"), "tensorboard_output_config", "'/tensorboard'"),
    "TensorBoard by https": (tensorboard("https://s3/board"), "tensorboard_output_config", "is not an S3 URI"),
    "a hook's output on this machine": (hook("/tensors"), "debugger_hook_config", "'/tensors'"),
    "a hook's output by https": (hook("https://s3/tensors"), "debugger_hook_config", "is not an S3 URI"),
    "a hook that is a text": (job(debugger_hook_config="s3://jobs/tensors"), "sagemaker", "AttributeError"),
    "an image by way of no VPC": (
        image("mine:1", training_repository_access_mode="Vpc"),
        "training_repository_access_mode",
        "the job is in no VPC",
    ),
    "a profiler's interval": (
        profiler(system_monitor_interval_millis=300),
        "profiler_config",
        "the interval is 300 ms. Give one of 100, 200, 500, 1000, 5000, 60000.",
    ),
    "a key for a local disk": (
        job(instance_type=GPU, volume_kms_key="alias/key"),
        "volume_kms_key",
        "ml.g5.xlarge is local NVMe",
    ),
    "a key for the local disk of a group": (
        groups(("a", CPU, 1), ("b", "ml.trn1.2xlarge", 1), volume_kms_key="alias/key", image_uri="mine"),
        "volume_kms_key",
        "ml.trn1.2xlarge is local NVMe",
    ),
    "21 channels, with the model's": (
        lambda: Job(parameters=MODEL, call={"inputs": {f"c{number}": "s3://data" for number in range(20)}}),
        "inputs",
        "the model's channel counts, too. The most is 20",
    ),
    "no channel": (called(inputs={}), "inputs", "A job without channels takes none"),
    "a path": (called(inputs=Path("data")), "inputs['training']", "is a path on this machine"),
    "a list of channels": (called(inputs=["s3://data"]), "inputs", "Give one URI, or a dict"),
    "a distribution that is a list": (job(distribution=["torchrun"]), "distribution", "is ['torchrun'], of type list"),
    "a place for the code without a scheme": (job(code_location="jobs/code"), "code_location", "Give s3://"),
    **{
        f"text for {name}": (job(**{name: "false"}), name, "is 'false', of type str. Give True or False")
        for name in (
            "use_spot_instances",
            "disable_output_compression",
            "disable_profiler",
            "enable_infra_check",
            "enable_network_isolation",
            "enable_remote_debug",
            "enable_sagemaker_metrics",
            "enable_session_tag_chaining",
            "encrypt_inter_container_traffic",
        )
    },
}

TAKEN: dict[str, Case] = {
    "a name of base_job_name": job(base_job_name="a-B-7"),
    "a name for a digest": image(f"mine@sha256:{'0' * 64}", base_job_name="mine"),
    "a name of the caller's": lambda: Job(
        parameters={"image_uri": f"{REGISTRY}/my_image"}, call={"job_name": "mine-1"}
    ),
    "95 hyperparameters": hyperparameters(95),
    "two tags": job(tags={"aws": "1", "a": "1"}),
    "FastFile": channel(input_mode="FastFile"),
    "a manifest": channel(s3_data_type="ManifestFile"),
    "an augmented manifest": channel(
        s3_data_type="AugmentedManifestFile", input_mode="Pipe", attribute_names=["image"], record_wrapping="RecordIO"
    ),
    "Gzip in Pipe": channel(compression="Gzip", job={"input_mode": "Pipe"}),
    "File in a job of Pipe": channel(input_mode="File", job={"input_mode": "Pipe"}),
    "a channel of a group": groups(("a", GPU, 1), ("b", CPU, 1), channel_for="b"),
    "five groups": groups(*((f"g{number}", GPU, 1) for number in range(5))),
    "a file system": file_system(**VPC),
    "a model": job(**MODEL, model_channel_name="pre.trained-1"),
    "an experiment": called(experiment_config={"ExperimentName": "a" * 120, "TrialName": "b", "RunName": "c"}),
    "TensorBoard": tensorboard("s3://jobs/board"),
    "a hook": hook("s3://jobs/tensors"),
    "an image by way of a VPC": image("mine:1", training_repository_access_mode="Vpc", **VPC),
    **{
        f"a profiler's interval of {interval} ms": profiler(system_monitor_interval_millis=interval)
        for interval in (100, 200, 500, 1000, 5000, 60000)
    },
    "a key": job(volume_kms_key="alias/key"),
    "a place for the code": job(code_location="s3://jobs/code"),
    "checkpoints from within another run": job(
        output_path="s3://jobs", checkpoint_s3_uri="s3://jobs/run-6/output/checkpoints"
    ),
    "weights from within another run": lambda: Job(
        parameters={"checkpoint_s3_uri": "s3://jobs/run-7/checkpoints"},
        call={"inputs": {"weights": "s3://jobs/run-6/checkpoints/step-100"}},
    ),
    "a model from within another run": lambda: Job(
        parameters={"model_uri": "s3://jobs/run-6/output/model.tar.gz", "checkpoint_s3_uri": "s3://jobs/run-7/state"}
    ),
}


def uploaded(session: Any) -> list[str]:
    objects = session.boto_session.client("s3").list_objects_v2(Bucket=session.default_bucket()).get("Contents", [])
    return [each["Key"] for each in objects]


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.slow
def test_what_aws_would_refuse_is_refused_before_the_upload(
    name: str, script: str, sagemaker_session: Any, requests: list[dict[str, Any]]
) -> None:
    case, parameter, said = REFUSED[name]
    before = uploaded(sagemaker_session)
    with pytest.raises(EstimatorError, match="Nothing was sent") as refused:
        case().estimator(script, sagemaker_session).fit(**case().call, wait=False)
    (problem,) = refused.value.problems
    assert problem.parameter == parameter
    assert said in str(problem)
    assert uploaded(sagemaker_session) == before
    assert not requests


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.slow
def test_what_aws_takes_is_sent(
    name: str,
    script: str,
    sagemaker_session: Any,
    requests: list[dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    case = TAKEN[name]
    case().estimator(script, sagemaker_session).fit(**case().call, wait=False)
    assert len(requests) == 1
    assert not caplog.records


DROPPED = {
    "checkpoint_local_path": "/opt/ml/other",
    "model_channel_name": "first",
    "recipe_overrides": {"trainer": {}},
    "training_repository_credentials_provider_arn": "arn:aws:lambda:us-west-2:123456789012:function:registry",
}


@pytest.mark.parametrize("name", DROPPED)
def test_what_the_sdk_drops_in_silence_is_a_warning(name: str, script: str, sagemaker_session: Any) -> None:
    plan = job(**{name: DROPPED[name]})().plan(script, sagemaker_session)
    assert plan.errors == ()
    assert [(problem.parameter, problem.found.split(" ")[-1]) for problem in plan.warnings] == [(name, "silence")]


@pytest.mark.parametrize("regex", ["(?<loss>[0-9.]+)", r"loss=(\p{Digit}+)", r"\Qloss[\E([0-9]+)"])
def test_an_expression_that_only_java_knows_is_a_warning(regex: str, script: str, sagemaker_session: Any) -> None:
    plan = job(metric_definitions=[{"Name": "loss", "Regex": regex}])().plan(script, sagemaker_session)
    assert plan.errors == ()
    assert [problem.parameter for problem in plan.warnings] == ["metric_definitions"]


@pytest.mark.parametrize("regex", ["loss=(", "loss)", "loss=[0-9", "*loss"])
def test_an_expression_of_no_language_is_an_error(regex: str, script: str, sagemaker_session: Any) -> None:
    plan = job(metric_definitions=[{"Name": "loss", "Regex": regex}])().plan(script, sagemaker_session)
    assert [problem.parameter for problem in plan.errors] == ["metric_definitions"]


def test_syntax_of_another_python_is_a_warning_for_an_image_of_ones_own(script: str, sagemaker_session: Any) -> None:
    Path(script).write_text("type Pair = tuple[int\n")
    own = image("mine:1")().plan(script, sagemaker_session)
    assert own.errors == ()
    assert [problem.parameter for problem in own.warnings] == ["entry_point"]
    old = job(framework_version="2.2.0", py_version="py310")().plan(script, sagemaker_session)
    assert [problem.parameter for problem in old.errors] == ["entry_point"]


UNREACHABLE = {
    "data": ("ListObjectsV2", {}, {"inputs": "s3://data/train"}),
    "a bucket": ("HeadBucket", {"checkpoint_s3_uri": "s3://data/run"}, {}),
    "a role by its name": ("GetRole", {"role": "Team"}, {}),
    "the code": ("PutObject", {}, {}),
}


UNKNOWN_HOST = EndpointConnectionError(endpoint_url="https://aws.nowhere")


@pytest.mark.parametrize(
    ("name", "fault", "remedy"),
    [
        *((name, UNKNOWN_HOST, "Check the network, the region, and AWS_ENDPOINT_URL") for name in UNREACHABLE),
        ("data", ProxyConnectionError(proxy_url="http://proxy:1"), "Check the network"),
        ("data", InvalidRegionError(region_name="no region"), "Correct the configuration of AWS"),
        (
            "data",
            EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
            "The local platform of the session has ended: start one, and give its session",
        ),
    ],
    ids=str,
)
def test_aws_that_can_not_be_asked_is_told_with_a_remedy(
    name: str,
    fault: Exception,
    remedy: str,
    script: str,
    sagemaker_session: Any,
    requests: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operation, parameters, call = UNREACHABLE[name]
    send = Endpoint.make_request

    def fail(endpoint: Endpoint, operation_model: Any, request: Any) -> Any:
        if operation_model.name == operation:
            raise fault
        return send(endpoint, operation_model, request)

    monkeypatch.setattr(Endpoint, "make_request", fail)
    Path(script).write_text(f"print({name!r}, {str(fault)!r})\n")  # code that was never uploaded
    with pytest.raises(
        EstimatorError, match=re.escape(f"The job was not sent: AWS can't be asked: {fault}".rstrip("."))
    ) as raised:
        Job(parameters=parameters).estimator(script, sagemaker_session).fit(**call, wait=False)
    assert remedy in str(raised.value)
    assert raised.value.__cause__ is fault
    assert not requests


@pytest.mark.parametrize("ask", [Estimator.plan, Estimator.fit, Estimator.to_sagemaker])
def test_a_profile_that_does_not_exist_is_told_with_a_remedy(
    ask: Callable[[Estimator], Any], script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with pytest.raises(
        EstimatorError, match=r"profile \(nobody\) could not be found\. Correct the configuration of AWS"
    ):
        ask(Estimator(script, role=ROLE, instance_type="ml.m5.xlarge"))
