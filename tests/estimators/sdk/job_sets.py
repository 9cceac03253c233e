"""Jobs drawn at random, each as JSON, so that a process with SDK V2 and one with V3 can build the same.

An object of the SDK is ``{"class": module and name below ``sagemaker``, "arguments": […], "options": {…}}``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from importlib import import_module
from typing import Any

ROLE = "arn:aws:iam::123456789012:role/SageMaker"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"
KEY = "arn:aws:kms:us-east-1:123456789012:key/01234567-0123-0123-0123-0123456789ab"
REPOSITORY = "https://git.example.com/team/code.git"
REGIONS = ("us-east-1",) * 6 + ("eu-west-1", "us-gov-west-1", "us-iso-east-1")

Draw = random.Random
Json = dict[str, Any]


def _object(name: str, *arguments: Any, **options: Any) -> Json:
    return {"class": name, "arguments": list(arguments), "options": options}


def built(value: Any, package: str) -> Any:
    """Return a value whose objects are those of a package, ``sagemaker`` or ``sagemaker.core``; equal ones are one."""
    return _built(value, package, {})


def _built(value: Any, package: str, made: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_built(item, package, made) for item in value]
    if not isinstance(value, Mapping):
        return value
    parts = {name: _built(item, package, made) for name, item in value.items()}
    if "class" not in value:
        return parts
    key = json.dumps(value)
    if key not in made:
        path = value["class"].split(".")
        found: Any = import_module(f"{package}.{path[0]}")
        for name in path[1:]:
            found = getattr(found, name)
        made[key] = found(*parts["arguments"], **parts["options"])
    return made[key]


def job_sets(seed: int, count: int) -> list[Json]:
    """Return jobs: the session's options, the Estimator's arguments, and those of ``fit``."""
    return [_job(random.Random(f"{seed}-{number}"), number) for number in range(count)]


def _job(draw: Draw, number: int) -> Json:
    is_configured = draw.random() < 0.04
    role = draw.choice([ROLE, None]) if is_configured else ROLE
    arguments: Json = {"role": role, **_some(draw, _OPTIONS, 0.15), **_hosts(draw), **_code(draw), **_spot(draw)}
    if {"use_spot_instances", "instance_groups"} & arguments.keys():
        arguments.pop("keep_alive_period_in_seconds", None)  # a warm pool keeps neither
    if "instance_groups" in arguments:
        arguments.pop("checkpoint_local_path", None)  # beside Debugger's hook, V2 compares the number of hosts, None
    if draw.random() < 0.15:
        arguments |= _VPC
    if draw.random() < 0.2:
        arguments |= draw.choice(_DEBUGGING)
    if draw.random() < 0.1:
        arguments["training_repository_access_mode"] = draw.choice(["Platform", "Vpc"])
        arguments["training_repository_credentials_provider_arn"] = draw.choice(
            [None, "arn:aws:lambda:us-west-2:123456789012:function:registry"]
        )
    calls: Json = {"inputs": _inputs(draw, arguments), "job_name": f"job-{number}" if draw.random() < 0.8 else None}
    if draw.random() < 0.1:
        calls["experiment_config"] = {"ExperimentName": "digits", "TrialName": "first"}
    if draw.random() < 0.9:
        _keep_rules(arguments, calls)
    region = draw.choice(REGIONS)
    session: Json = {
        "region": region,
        "bucket": draw.choice(["jobs"] * 5 + [None]),
        "configured": None,
        "prefix": None,
    }
    if draw.random() < 0.1:
        session |= {"bucket": "jobs", "prefix": "team/vision"}
    if is_configured:
        session["configured"] = draw.choice(_CONFIGURED)
    stated = {name: value for name, value in arguments.items() if value is not None}
    return {"number": number, "session": session, "arguments": stated, "calls": calls}


def _keep_rules(arguments: Json, calls: Json) -> None:
    """Give a job what AWS wants beside what it has, and take away what does not go with it."""
    drawn = json.dumps([arguments, calls])
    if "FileSystemInput" in drawn or arguments.get("training_repository_access_mode") == "Vpc":
        arguments |= _VPC
    if any(f'"{kind}"' in drawn for kind in _NVME_KINDS):
        arguments.pop("volume_kms_key", None)


def _hosts(draw: Draw) -> Json:
    """Draw hosts with an image and a distribution; one in ten times, of any that may not go together."""
    launchers, kinds, images = draw.choice(_TOGETHER)
    if draw.random() < 0.1:
        kinds, images = draw.choice(_TOGETHER)[1:]
    launcher = draw.choice(launchers)
    shared = draw.choice(images)
    if draw.random() < 0.15:
        groups = [_group("gpus", draw.choice(kinds), 2), _group("cpus", draw.choice(_ANY_KIND), 1)][
            : draw.choice([1, 2])
        ]
        if isinstance(launcher, dict) and draw.random() < 0.9:
            launcher = {**launcher, "instance_groups": groups[:1]}
        return {**shared, "instance_groups": draw.sample(groups, len(groups)), "distribution": launcher}
    count = draw.choice([1, 2, 4, 16])
    return {**shared, "instance_type": draw.choice(kinds), "instance_count": count, "distribution": launcher}


def _group(name: str, kind: str, count: int) -> Json:
    return _object("instance_group.InstanceGroup", name, kind, count)


_GIT: Json = {"repo": REPOSITORY, "branch": "main"}
_IN_GIT: list[Json] = [
    {"git_config": _GIT, "entry_point": "code/train.py"},
    {"git_config": _GIT, "entry_point": "train.py", "source_dir": "code", "dependencies": ["library"]},
]


def _code(draw: Draw) -> Json:
    """Draw where the code lies, below the directory that the building process stands in."""
    return draw.choice(
        [
            {"entry_point": "code/train.py"},
            {"entry_point": "train.py", "source_dir": "code"},
            {"entry_point": "train.py", "source_dir": "code", "dependencies": ["library"]},
            {"entry_point": "code/train.py", "dependencies": ["library", "library/layers.py"]},
            {"entry_point": "train.py", "source_dir": "s3://jobs/old/sourcedir.tar.gz"},
        ]
        * 4
        + [{"entry_point": "with_smddp/train.py"}, *_IN_GIT]
    )


def _spot(draw: Draw) -> Json:
    if draw.random() < 0.7:
        return {}
    return {
        "use_spot_instances": True,
        "max_run": 600,
        "max_wait": draw.choice([600, 1200]),
        "checkpoint_s3_uri": draw.choice([None, "s3://jobs/checkpoints/one"]),
        "checkpoint_local_path": draw.choice([None, "/opt/ml/other"]),
    }


def _inputs(draw: Draw, job: Json) -> Any:
    """Draw channels: none, a single one, or several by name."""
    groups = [group["arguments"][0] for group in job.get("instance_groups", ())]
    if draw.random() < 0.6:
        return draw.choice([lambda: None, lambda: _channel(draw, groups)])()
    names = draw.sample(["training", "test", "validation"] * 4 + ["model", "code"], draw.choice([1, 2, 3]))
    groups = groups if len(names) == 1 else []  # AWS takes groups of all channels or of none
    return {name: _channel(draw, groups) for name in names}


def _channel(draw: Draw, groups: list[str]) -> Any:
    kind = draw.random()
    if kind < 0.25:
        return "s3://data/train"
    if kind < 0.4:
        return _object(
            "inputs.FileSystemInput",
            "fs-01234567",
            draw.choice(["FSxLustre", "EFS"]),
            "/data",
            **_some(draw, {"file_system_access_mode": ["ro", "rw"], "content_type": ["application/x-image"]}),
        )
    options = _some(draw, _CHANNEL_OPTIONS)
    if draw.random() < 0.3:
        options |= draw.choice(_MANIFESTS)
    if draw.random() < 0.9 and _ONLY_PIPE & options.keys():
        options["input_mode"] = "Pipe"
    if groups and draw.random() < 0.5:
        options["instance_groups"] = draw.sample(groups, draw.randint(1, len(groups)))
    return _object("inputs.TrainingInput", "s3://data/train", **options)


def _some(draw: Draw, options: dict[str, list[Any]], share: float = 0.2) -> Json:
    return {name: draw.choice(values) for name, values in options.items() if draw.random() < share}


_CHANNEL_OPTIONS: dict[str, list[Any]] = {
    "distribution": ["FullyReplicated", "ShardedByS3Key"],
    "compression": ["Gzip", "None"],
    "content_type": ["application/x-image"],
    "record_wrapping": ["RecordIO", "None"],
    "input_mode": ["File", "FastFile", "Pipe"],
    "shuffle_config": [_object("inputs.ShuffleConfig", 7)],
    "hub_access_config": [{"HubContentArn": "arn:aws:sagemaker:us-east-1:123456789012:hub-content/mine/Model/one"}],
    "model_access_config": [{"AcceptEula": True}],
}
_MANIFESTS: list[Json] = [
    {"s3_data_type": "ManifestFile", "input_mode": "File"},
    {"s3_data_type": "AugmentedManifestFile", "attribute_names": ["source-ref", "label"]},
    {"target_attribute_name": "label"},  # for AutoML alone: no training job takes it
]
_ONLY_PIPE = {"compression", "record_wrapping", "attribute_names"}


def _rule(kind: str, name: str, **options: Any) -> Json:
    return _object(f"debugger.{kind}.sagemaker", _object(f"debugger.rule_configs.{name}"), **options)


_COLLECTION = _object("debugger.CollectionConfig", "weights", parameters={"save_interval": "100"})
_DEBUGGING: list[Json] = [
    {"debugger_hook_config": True},
    {"debugger_hook_config": True, "disable_profiler": False},
    {"debugger_hook_config": _object("debugger.DebuggerHookConfig", hook_parameters={"save_interval": "10"})},
    {
        "debugger_hook_config": _object(
            "debugger.DebuggerHookConfig", "s3://jobs/tensors", "/opt/ml/tensors", collection_configs=[_COLLECTION]
        )
    },
    {"disable_profiler": False},
    {"profiler_config": _object("debugger.ProfilerConfig", system_monitor_interval_millis=500)},
    {"profiler_config": _object("debugger.ProfilerConfig", "s3://jobs/profile", disable_profiler=True)},
    {"rules": []},
    {"rules": [_rule("Rule", "loss_not_decreasing")]},
    {
        "rules": [
            _rule("Rule", "vanishing_gradient", collections_to_save=[_COLLECTION], rule_parameters={"threshold": "1"})
        ]
    },
    {"rules": [_rule("ProfilerRule", "LowGPUUtilization")]},
    {"rules": [_rule("ProfilerRule", "ProfilerReport"), _rule("Rule", "overfit")], "disable_profiler": False},
    {"tensorboard_output_config": _object("debugger.TensorBoardOutputConfig", "s3://jobs/board")},
    {"tensorboard_output_config": _object("debugger.TensorBoardOutputConfig", "s3://jobs/board", "/opt/ml/board")},
]

_VPC: Json = {"subnets": ["subnet-1", "subnet-2"], "security_group_ids": ["sg-1"]}
_NVME_KINDS = ["ml.g5.xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge", "ml.trn1.2xlarge"]
"""Instance types without an EBS volume, which take no key for it."""
_GPU_KINDS = ["ml.g5.xlarge", "ml.p3.16xlarge", "ml.p4d.24xlarge", "ml.p5.48xlarge"]
_ANY_KIND = ["ml.m5.xlarge", "ml.c5n.18xlarge", *_GPU_KINDS]
_OWN_IMAGE: list[Json] = [{"image_uri": IMAGE}, {"image_uri": IMAGE, "framework_version": "2.3", "py_version": "py311"}]
_IMAGES: list[Json] = [
    {"framework_version": "2.6.0", "py_version": "py312"},
    {"framework_version": "2.5.1", "py_version": "py311"},
    {"framework_version": "2.2.0", "py_version": "py310"},
    {"framework_version": "1.13.1", "py_version": "py39"},
    *_OWN_IMAGE,
]
_SMDDP = {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-verbose"}}}
_MODEL_PARALLEL = {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}}
_SMP_V2 = {
    "modelparallel": {
        "enabled": True,
        "parameters": {"hybrid_shard_degree": 4, "sm_activation_offloading": True, "tensor_parallel_degree": 2},
    }
}
_MPI = {"mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "-x A"}}
_TORCHRUN = {"torch_distributed": {"enabled": True}}

_TOGETHER: list[tuple[list[Any], list[str], list[Json]]] = [
    ([None], [*_ANY_KIND], _IMAGES),
    ([None, "torchrun", _TORCHRUN], ["ml.trn1.2xlarge"], _OWN_IMAGE),
    (["mpi", _MPI, "parameter_server", {"torch_distributed": {"enabled": False}}], _ANY_KIND, _IMAGES),
    (["torchrun", _TORCHRUN], _GPU_KINDS, _IMAGES),
    (["pytorchddp"], ["ml.p4d.24xlarge"], [{"framework_version": "2.2.0", "py_version": "py310"}, *_OWN_IMAGE]),
    (
        ["smdistributed", _SMDDP],
        ["ml.p4d.24xlarge"],
        [{"framework_version": "2.0.1", "py_version": "py310"}, *_OWN_IMAGE],
    ),
    ([{"smdistributed": _MODEL_PARALLEL, **_MPI}], ["ml.p4d.24xlarge", "ml.g5.xlarge"], _OWN_IMAGE),
    ([{"smdistributed": _SMP_V2, **_TORCHRUN}], ["ml.p4d.24xlarge", "ml.p5.48xlarge"], _IMAGES[1:3]),
]
"""Distributions, with the instance types and the images that they go with."""

_OPTIONS: dict[str, list[Any]] = {
    "hyperparameters": [
        {"lr": 0.1, "epochs": 3, "nesterov": True, "schedule": [1, 2], "name": "1e3", "warm": None},
        {"nested": {"a": [1, {"b": "ü"}]}, "sagemaker_program": "mine.py", "7": "text"},
    ],
    "code_location": ["s3://jobs/code", "s3://elsewhere/deep/prefix/"],
    "output_path": ["s3://jobs/models", "s3://elsewhere/models/"],
    "output_kms_key": ["alias/models", KEY],
    "volume_kms_key": ["alias/volumes", KEY],
    "volume_size": [1, 100],
    "keep_alive_period_in_seconds": [60, 600],
    "training_plan": ["arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine"],
    "instance_placement_config": [
        {"EnableMultipleJobs": True, "PlacementSpecifications": [{"UltraServerId": "u-1", "InstanceCount": 2}]}
    ],
    "max_run": [60, 2419200],
    "max_retry_attempts": [1, 30],
    "input_mode": ["File", "FastFile", "Pipe"],
    "disable_output_compression": [True, False],
    "base_job_name": ["digits", "a-name-that-is-much-too-long-to-be-kept-as-a-whole-by-the-sdk-of-amazon"],
    "tags": [{"team": "vision"}, [{"Key": "team", "Value": "vision"}, {"Key": "cost", "Value": "7"}], []],
    "encrypt_inter_container_traffic": [True, False],
    "enable_network_isolation": [True, False],
    "model_uri": ["s3://jobs/old/model.tar.gz", "s3://jumpstart-cache-prod-us-east-1/training/model.tar.gz"],
    "model_channel_name": ["model", "first", "first", "code"],
    "checkpoint_s3_uri": ["s3://jobs/checkpoints/two"],
    "checkpoint_local_path": ["/opt/ml/other"],
    "metric_definitions": [[], [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]],
    "enable_sagemaker_metrics": [True, False],
    "environment": [{"A": "1", "B": ""}, {}],
    "container_log_level": [10, 50],
    "container_entry_point": [["train"], ["bash", "-c", "exec train"]],
    "container_arguments": [["--fast"]],
    "enable_infra_check": [True, False],
    "enable_remote_debug": [True, False],
    "enable_session_tag_chaining": [True, False],
    "recipe_overrides": [{"trainer": {}}],
}

_ROLE: Json = {"RoleArn": "arn:aws:iam::123456789012:role/Configured"}
_CONFIGURED: list[Json] = [
    {"TrainingJob": _ROLE},
    {
        "TrainingJob": {
            **_ROLE,
            "Tags": [{"Key": "team", "Value": "configured"}, {"Key": "from", "Value": "file"}],
            "Environment": {"C": "3"},
            "EnableNetworkIsolation": True,
            "EnableInterContainerTrafficEncryption": True,
            "OutputDataConfig": {"KmsKeyId": "configured-output"},
            "ResourceConfig": {"VolumeKmsKeyId": "configured-volume"},
            "VpcConfig": {"Subnets": ["subnet-9"], "SecurityGroupIds": ["sg-9"]},
        }
    },
    {"TrainingJob": {**_ROLE, "ProfilerConfig": {"DisableProfiler": True}}},
    {"TrainingJob": {**_ROLE, "ProfilerConfig": {"DisableProfiler": False}}},
]
"""What an SDK configuration says below ``SageMaker``."""
