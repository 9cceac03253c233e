"""A host's /opt/ml, byte for byte as the platform lays it out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimators.local.engine.hosted.request import LocalFiles
from estimators.local.engine.instance_groups import name_hosts
from estimators.local.engine.training.request import TrainingRequest
from estimators.local.engine.training.runner import lay_out
from estimators.local.executors import ClusterSpec, ProcessExecutor


def parse(**members: Any) -> TrainingRequest:
    return TrainingRequest.parse(
        {
            "TrainingJobName": "job",
            "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
            "RoleArn": "arn:aws:iam::123456789012:role/training",
            "OutputDataConfig": {"S3OutputPath": "s3://bucket/output/"},
            "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1},
            **members,
        }
    )


def made(root: Path, request: TrainingRequest, index: int = 0, *, isolated: bool = True) -> dict[str, Any]:
    hosts = name_hosts(request.groups)
    roots = {host.name: root for host in hosts}
    with ProcessExecutor(isolated=isolated).cluster(ClusterSpec(name="job", image="image", roots=roots)) as cluster:
        lay_out(request, hosts, hosts[index], root, cluster)
        return {path.stem: json.loads(path.read_text()) for path in (root / "input" / "config").iterdir()} | {
            "addresses": cluster.addresses
        }


def channel(name: str) -> dict[str, Any]:
    source = {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


def test_the_directories_are_there(tmp_path: Path) -> None:
    request = parse(
        InputDataConfig=[channel("train"), channel("test.a")],
        CheckpointConfig={"S3Uri": "s3://bucket/c", "LocalPath": "/opt/ml/state/now"},
    )
    root = tmp_path / "algo-1"
    made(root, request)
    empty = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir() and not any(path.iterdir())}
    assert empty == {"code", "input/data/train", "input/data/test.a", "model", "output/data", "state/now"}


def test_the_configuration_is_the_platforms(tmp_path: Path) -> None:
    request = parse(
        HyperParameters={"epochs": "3", "name": '"a"'},
        InputDataConfig=[channel("train")],
        CheckpointConfig={"S3Uri": "s3://bucket/c"},
    )
    config = made(tmp_path / "algo-2", request, 1)
    del config["addresses"]
    assert config == {
        "hyperparameters": {"epochs": "3", "name": '"a"'},
        "inputdataconfig": {
            "train": {
                "TrainingInputMode": "File",
                "S3DistributionType": "FullyReplicated",
                "RecordWrapperType": "None",
            }
        },
        "resourceconfig": {
            "current_host": "algo-2",
            "current_instance_type": "ml.m5.large",
            "current_group_name": "homogeneousCluster",
            "hosts": ["algo-1", "algo-2"],
            "instance_groups": [
                {
                    "instance_group_name": "homogeneousCluster",
                    "instance_type": "ml.m5.large",
                    "hosts": ["algo-1", "algo-2"],
                }
            ],
            "network_interface_name": "lo",
        },
        "checkpointconfig": {"S3Uri": "s3://bucket/c", "LocalPath": "/opt/ml/checkpoints"},
    }


def test_tensorboard_and_the_debugger_find_where_to_write(tmp_path: Path) -> None:
    hook = {"S3OutputPath": "s3://bucket/d", "HookParameters": {"save_interval": "10"}}
    request = parse(
        TensorBoardOutputConfig={"S3OutputPath": "s3://bucket/t", "LocalPath": "/opt/ml/logs"}, DebugHookConfig=hook
    )
    config = made(tmp_path / "algo-1", request)
    assert config["tensorboardoutputconfig"] == {"S3OutputPath": "s3://bucket/t", "LocalPath": "/opt/ml/logs"}
    assert config["debughookconfig"] == {**hook, "LocalPath": "/opt/ml/output/tensors"}
    assert (tmp_path / "algo-1" / "logs").is_dir()


def test_without_checkpoints_there_is_no_checkpointconfig(tmp_path: Path) -> None:
    assert "checkpointconfig" not in made(tmp_path / "algo-1", parse())
    assert not (tmp_path / "algo-1" / "checkpoints").exists()


def test_groups_of_a_heterogeneous_cluster(tmp_path: Path) -> None:
    groups = [
        {"InstanceGroupName": name, "InstanceType": kind, "InstanceCount": count}
        for name, kind, count in (("gpu", "ml.g5.xlarge", 1), ("cpu", "ml.m5.large", 2))
    ]
    config = made(tmp_path / "algo-2", parse(ResourceConfig={"InstanceGroups": groups}), 1)["resourceconfig"]
    assert (config["current_group_name"], config["current_instance_type"]) == ("cpu", "ml.m5.large")
    assert config["hosts"] == ["algo-1", "algo-2", "algo-3"]
    assert [group["hosts"] for group in config["instance_groups"]] == [["algo-1"], ["algo-2", "algo-3"]]


@pytest.mark.parametrize("isolated", [True, False])
def test_hosts_are_sorted_as_text_whatever_they_are_called(tmp_path: Path, isolated: bool) -> None:
    request = parse(ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 11})
    config = made(tmp_path / "algo-1", request, isolated=isolated)
    names = {address if not isolated else host: host for host, address in config["addresses"].items()}
    assert [names[name] for name in config["resourceconfig"]["hosts"]][:4] == ["algo-1", "algo-10", "algo-11", "algo-2"]


def test_where_there_is_no_isolation_the_files_hold_addresses_and_real_paths(tmp_path: Path) -> None:
    config = made(tmp_path / "algo-1", parse(CheckpointConfig={"S3Uri": "s3://bucket/c"}), isolated=False)
    assert config["resourceconfig"]["current_host"] == config["addresses"]["algo-1"]
    assert config["checkpointconfig"]["LocalPath"] == str(tmp_path / "algo-1" / "checkpoints")


def test_places_on_this_machine_are_told_like_those_on_s3(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").touch()
    data = tmp_path / "data"
    files = LocalFiles(code=tmp_path / "mine", channels={"here": data}, checkpoints=data, checkpoint_path="/anywhere")
    root = tmp_path / "algo-1"
    config = made(root, replace(parse(InputDataConfig=[channel("there")]), files=files))
    assert config["inputdataconfig"]["here"] == config["inputdataconfig"]["there"]
    assert config["checkpointconfig"] == {"LocalPath": "/anywhere"}
    assert (root / "code" / "train.py").exists()
    assert (root / "input" / "data" / "here").is_dir()
