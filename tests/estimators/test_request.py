"""Estimator sends the CreateTrainingJob that vanilla PyTorch sends, but for what docs/reference/estimator.md says."""

from __future__ import annotations

import copy
import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from estimators import Estimator
from estimators.errors import EstimatorError

pytestmark = pytest.mark.usefixtures("telemetry")

ROLE = "arn:aws:iam::123456789012:role/SageMaker"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "estimator.md"
VERSION = {"framework_version": "2.8.0", "py_version": "py312"}
PLACE = "sagemaker_submit_directory"
GPUS = {"instance_type": "ml.p4d.24xlarge", "instance_count": 2}

Arguments = dict[str, Any]


def documented_differences() -> set[str]:
    """The first column of the page's table of the request's fields."""
    table = PAGE.read_text().split("| field of the request |")[1].split("\n\n")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def differing(vanilla: Arguments, ours: Arguments) -> set[str]:
    """The fields that are not equal: each hyperparameter is one, and the code's channel is the code's place."""
    fields = []
    for request in (vanilla, ours):
        channels = {channel["ChannelName"]: channel for channel in request.get("InputDataConfig", ())}
        code = channels.pop("code")["DataSource"]["S3DataSource"]["S3Uri"] if "code" in channels else None
        own = request["HyperParameters"]
        place = code or json.loads(own["sagemaker_submit_directory"])
        fields.append({**request, **own, "HyperParameters": None, "InputDataConfig": channels, PLACE: place})
    return {field for field in fields[0].keys() | fields[1].keys() if fields[0].get(field) != fields[1].get(field)}


def groups() -> list[Any]:
    from sagemaker.instance_group import InstanceGroup

    return [InstanceGroup("cpus", "ml.m5.xlarge", 1), InstanceGroup("gpus", "ml.g5.xlarge", 2)]


def training_input() -> Any:
    from sagemaker.inputs import TrainingInput

    return TrainingInput("s3://data/train", distribution="ShardedByS3Key", input_mode="FastFile")


def file_system() -> Any:
    from sagemaker.inputs import FileSystemInput

    return FileSystemInput("fs-01234567", "FSxLustre", "/data", "ro")


CASES: dict[str, Callable[[], Arguments]] = {
    "no distribution": dict,
    "torchrun": lambda: {**GPUS, "distribution": {"torch_distributed": {"enabled": True}}},
    "pytorchddp": lambda: {
        **GPUS,
        "distribution": {"pytorchddp": {"enabled": True}},
        "framework_version": "2.2.0",
        "py_version": "py310",
    },
    "smdistributed": lambda: {
        **GPUS,
        "distribution": {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-verbose"}}},
        "framework_version": "2.0.1",
        "py_version": "py310",
    },
    "mpi": lambda: {
        "instance_count": 4,
        "distribution": {"mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "-x A"}},
    },
    "modelparallel": lambda: {
        **GPUS,
        "distribution": {
            "torch_distributed": {"enabled": True},
            "smdistributed": {
                "modelparallel": {
                    "enabled": True,
                    "parameters": {"hybrid_shard_degree": 8, "sm_activation_offloading": True, "random_seed": 3},
                }
            },
        },
        "framework_version": "2.5.1",
        "py_version": "py311",
    },
    "parameter server": lambda: {"distribution": {"parameter_server": {"enabled": True}}},
    "spot with checkpoints": lambda: {
        "use_spot_instances": True,
        "max_run": 600,
        "max_wait": 1200,
        "checkpoint_s3_uri": "s3://jobs/checkpoints",
        "checkpoint_local_path": "/opt/ml/other",
    },
    "vpc": lambda: {
        "subnets": ["subnet-1"],
        "security_group_ids": ["sg-1"],
        "encrypt_inter_container_traffic": True,
        "enable_network_isolation": True,
    },
    "environment and tags": lambda: {"environment": {"A": "1"}, "tags": {"team": "vision"}},
    "list of tags": lambda: {"tags": [{"Key": "team", "Value": "vision"}]},
    "metrics": lambda: {
        "metric_definitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
        "enable_sagemaker_metrics": False,
    },
    "instance groups": lambda: {"instance_groups": groups(), "instance_type": None, "instance_count": None},
    "warm pool": lambda: {"keep_alive_period_in_seconds": 600, "max_retry_attempts": 3, "volume_size": 100},
    "hyperparameters": lambda: {
        "hyperparameters": {"lr": 0.1, "epochs": 3, "nesterov": True, "schedule": [1, 2], "name": "1e3", "warm": None},
        "container_log_level": 10,
    },
    "one channel": lambda: {"inputs": "s3://data/train", "input_mode": "FastFile"},
    "several channels": lambda: {
        "inputs": {"train": training_input(), "fsx": file_system(), "test": "s3://data/test"},
        "subnets": ["subnet-1"],
        "security_group_ids": ["sg-1"],
    },
    "places": lambda: {
        "instance_type": "ml.m5.xlarge",
        "output_path": "s3://jobs/models",
        "output_kms_key": "alias/models",
        "code_location": "s3://jobs/code",
        "disable_output_compression": True,
        "model_uri": "s3://jobs/old/model.tar.gz",
        "volume_kms_key": "alias/volumes",
    },
    "own image": lambda: {
        "image_uri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
        "framework_version": None,
        "py_version": None,
        "container_entry_point": ["train"],
        "container_arguments": ["--fast"],
        "training_repository_access_mode": "Vpc",
        "subnets": ["subnet-1"],
        "security_group_ids": ["sg-1"],
        "distribution": {"torch_distributed": {"enabled": True}},
    },
    "infrastructure": lambda: {
        "enable_infra_check": True,
        "enable_remote_debug": True,
        "enable_session_tag_chaining": True,
        "experiment_config": {"ExperimentName": "digits", "TrialName": "first"},
    },
    "debugger and profiler by choice": lambda: {"debugger_hook_config": True, "disable_profiler": False},
}


def sent_by_both(case: Arguments, script: str, session: Any, requests: list[Arguments]) -> tuple[Arguments, Arguments]:
    from sagemaker.pytorch import PyTorch

    calls = {name: case.pop(name) for name in ("inputs", "experiment_config") if name in case}
    common = {"entry_point": script, "role": ROLE, "instance_type": "ml.g5.xlarge", "instance_count": 1, **VERSION}
    arguments = {name: value for name, value in {**common, **case}.items() if value is not None}
    for kind in (PyTorch, Estimator):
        kind(**arguments, sagemaker_session=session).fit(**calls, wait=False, job_name=f"same-{len(requests) // 2}")
    vanilla, ours = requests[-2:]
    return vanilla, ours


@pytest.mark.parametrize("name", CASES)
def test_the_request_is_the_one_of_vanilla_pytorch(
    name: str, script: str, sagemaker_session: Any, requests: list[Arguments]
) -> None:
    vanilla, ours = sent_by_both(CASES[name](), script, sagemaker_session, requests)
    assert differing(vanilla, ours) <= ({PLACE} if "by choice" in name else documented_differences())


def test_every_documented_difference_is_one(script: str, sagemaker_session: Any, requests: list[Arguments]) -> None:
    vanilla, ours = sent_by_both({}, script, sagemaker_session, requests)
    assert documented_differences() == differing(vanilla, ours)
    assert "DebugHookConfig" not in ours
    assert ours["ProfilerConfig"] == {"DisableProfiler": True}


def test_the_groups_of_torchrun_are_told_to_the_container(
    script: str, sagemaker_session: Any, requests: list[Arguments]
) -> None:
    cpus, gpus = groups()
    case = {"instance_groups": [gpus, cpus], "instance_type": None, "instance_count": None}
    case["distribution"] = {"torch_distributed": {"enabled": True}, "instance_groups": [gpus]}
    vanilla, ours = sent_by_both(case, script, sagemaker_session, requests)
    name = "sagemaker_distribution_instance_groups"
    assert name not in vanilla["HyperParameters"]  # the SDK still drops it, and this test would see it
    assert ours["HyperParameters"][name] == f'["{gpus.instance_group_name}"]'


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.slow
def test_debugger_and_profiler_are_as_the_sdks_configuration_says(
    on: bool, script: str, sagemaker_session: Any, requests: list[Arguments]
) -> None:
    configured = copy.copy(sagemaker_session)
    training = {"TrainingJob": {"ProfilerConfig": {"DisableProfiler": not on}}}
    modules = {"PythonSDK": {"Modules": {"Estimator": {"DebugHookConfig": on}}}}
    configured.sagemaker_config = {"SchemaVersion": "1.0", "SageMaker": {**training, **modules}}
    vanilla, ours = sent_by_both({}, script, configured, requests)
    assert differing(vanilla, ours) <= {PLACE}
    assert ("DebugHookConfig" in ours, ours["ProfilerConfig"]["DisableProfiler"]) == (on, not on)


@pytest.mark.parametrize("stated", [True, False, None])
def test_the_sdks_configuration_overrules_no_encryption_that_is_stated(
    stated: bool | None, script: str, sagemaker_session: Any, requests: list[Arguments]
) -> None:
    configured = copy.copy(sagemaker_session)
    training = {"EnableInterContainerTrafficEncryption": stated is not True}
    configured.sagemaker_config = {"SchemaVersion": "1.0", "SageMaker": {"TrainingJob": training}}
    common = {"role": ROLE, "instance_type": "ml.g5.xlarge", **VERSION, "sagemaker_session": configured}
    estimator = Estimator(script, encrypt_inter_container_traffic=stated, **common)
    plan = estimator.plan()
    estimator.fit(wait=False)
    assert requests[-1].get("EnableInterContainerTrafficEncryption", False) is (stated is not False)
    assert plan.errors == ()
    assert configured.sagemaker_config["SageMaker"]["TrainingJob"] == training


def test_nothing_is_reported_to_the_makers_of_the_sdk(
    script: str, sagemaker_session: Any, requests: list[Arguments], telemetry: list[str]
) -> None:
    from sagemaker.pytorch import PyTorch

    common = {"role": ROLE, "instance_type": "ml.g5.xlarge", "instance_count": 1, **VERSION}
    PyTorch(script, **common, sagemaker_session=sagemaker_session).fit(wait=False)
    assert len(telemetry) == 1  # the SDK still does it, and this test would see it
    estimator = Estimator(script, **common, sagemaker_session=sagemaker_session)
    estimator.fit(wait=False)
    estimator.to_sagemaker().fit(wait=False)
    assert len(telemetry) == 1
    assert len(requests) == 3


def test_a_source_dir_is_bundled_as_by_vanilla_pytorch(
    tmp_path: Path, sagemaker_session: Any, requests: list[Arguments]
) -> None:
    code, library = tmp_path / "code", tmp_path / "library"
    for directory in (code, code / "package", library):
        directory.mkdir()
    (code / "train.py").write_text("import package\n")
    (code / "package" / "__init__.py").write_text("")
    (code / "requirements.txt").write_text("einops\n")
    (library / "layers.py").write_text("")
    case = {"source_dir": str(code), "dependencies": [str(library)]}
    bundles = []
    for sent in sent_by_both(case, "train.py", sagemaker_session, requests):
        bucket, _, key = sent["HyperParameters"]["sagemaker_submit_directory"][6:-1].partition("/")
        archive = sagemaker_session.s3_client.get_object(Bucket=bucket, Key=key)["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            bundles.append(sorted(files.getnames()))
    assert bundles[0] == bundles[1]
    assert "layers.py" in " ".join(bundles[1])


@pytest.mark.parametrize(
    ("name", "instance_type", "emitted"),
    [
        ("torchrun", "ml.g5.xlarge", "sagemaker_torch_distributed_enabled"),
        ("pytorchddp", "ml.p4d.24xlarge", "sagemaker_distributed_dataparallel_enabled"),
        ("smdistributed", "ml.p4d.24xlarge", "sagemaker_distributed_dataparallel_enabled"),
        ("mpi", "ml.m5.xlarge", "sagemaker_mpi_enabled"),
        ("parameter_server", "ml.m5.xlarge", "sagemaker_parameter_server_enabled"),
    ],
)
def test_each_name_turns_its_distribution_on(
    name: str, instance_type: str, emitted: str, script: str, sagemaker_session: Any, requests: list[Arguments]
) -> None:
    Estimator(
        script, role=ROLE, instance_type=instance_type, distribution=name, sagemaker_session=sagemaker_session
    ).fit(wait=False)
    assert requests[-1]["HyperParameters"][emitted] == "true"


def test_a_tuner_names_the_class_of_the_sdk(script: str, sagemaker_session: Any) -> None:
    from sagemaker.tuner import ContinuousParameter, HyperparameterTuner

    sent: list[Arguments] = []

    def answer(params: Arguments, **_: Any) -> Any:
        sent.append(json.loads(params["body"]))
        return AWSResponse("", 200, {}, None), {}

    events, name = sagemaker_session.sagemaker_client.meta.events, "before-call.sagemaker.CreateHyperParameterTuningJob"
    events.register(name, answer)
    estimator = Estimator(script, role=ROLE, instance_type="ml.g5.xlarge", sagemaker_session=sagemaker_session)
    HyperparameterTuner(
        estimator.to_sagemaker(), "loss", {"lr": ContinuousParameter(0.1, 1)}, [{"Name": "loss", "Regex": "loss=(.+)"}]
    ).fit(wait=False, include_cls_metadata=True)
    events.unregister(name, answer)
    static = sent[0]["TrainingJobDefinition"]["StaticHyperParameters"]
    assert static["sagemaker_estimator_class_name"] == '"PyTorch"'
    assert static["sagemaker_estimator_module"] == '"sagemaker.pytorch.estimator"'


def test_a_role_is_found_by_its_name(script: str, sagemaker_session: Any, requests: list[Arguments]) -> None:
    role = sagemaker_session.boto_session.client("iam").create_role(RoleName="Team", AssumeRolePolicyDocument="{}")
    Estimator(script, role="Team", instance_type="ml.g5.xlarge", sagemaker_session=sagemaker_session).fit(wait=False)
    assert requests[-1]["RoleArn"] == role["Role"]["Arn"]


def test_a_role_that_iam_does_not_know_is_named_before_the_upload(
    script: str, sagemaker_session: Any, requests: list[Arguments]
) -> None:
    before = sagemaker_session.list_s3_files("jobs", "")
    job = Estimator(script, role="Nobody", instance_type="ml.g5.xlarge", sagemaker_session=sagemaker_session)
    with pytest.raises(EstimatorError, match=r"^The job was not sent: IAM .* of the role 'Nobody': .* give the ARN\.$"):
        job.fit(wait=False)
    assert (sagemaker_session.list_s3_files("jobs", ""), requests) == (before, [])


def test_the_image_is_the_newest_for_the_instance_type(
    script: str, sagemaker_session: Any, requests: list[Arguments]
) -> None:
    from packaging.version import Version
    from sagemaker import image_uris

    newest = max(image_uris.config_for_framework("pytorch")["training"]["versions"], key=Version)
    for instance_type, device in (("ml.g5.xlarge", "gpu"), ("ml.m5.xlarge", "cpu")):
        Estimator(script, role=ROLE, instance_type=instance_type, sagemaker_session=sagemaker_session).fit(wait=False)
        assert f"pytorch-training:{newest}-{device}-py3" in requests[-1]["AlgorithmSpecification"]["TrainingImage"]
