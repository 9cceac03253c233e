"""Every member of CreateTrainingJob has a fate: it is honoured, recorded with a line in the log, or refused."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.model import ListShape, MapShape, Shape, StructureShape

from estimators.local.engine import ApiError
from estimators.local.engine.hosted.request import Support, only_recorded, rule_of
from estimators.local.engine.training.record import TrainingRecord
from estimators.local.engine.training.request import RULES, TrainingRequest
from estimators.service_model import service_model, violations
from tests.estimators.local.engine.training.test_request import REQUEST

SHAPE = service_model().operation_model("CreateTrainingJob").input_shape
SHOWN = service_model().operation_model("DescribeTrainingJob").output_shape
PAGE = Path(__file__).parents[5] / "docs" / "reference" / "local-platform.md"
TEXTS = ("a", "a1b2c3d4", "s3://bucket/a", "/opt/ml/a", "loss=(.*)", "fs-01234567", "sg-01234567", "1")
ARNS = ("iam::123456789012:role/a", "sagemaker:us-east-1:123456789012:training-plan/a", "lambda:us-east-1:1:function:a")


def paths(shape: Shape, path: str = "") -> Iterator[str]:
    """Every member of a shape, by its path."""
    while isinstance(shape, ListShape):
        shape = shape.member
    if isinstance(shape, StructureShape):
        for name, member in shape.members.items():
            yield (inside := f"{path}.{name}".lstrip("."))
            yield from paths(member, inside)


def test_every_member_has_a_rule_and_every_rule_a_member() -> None:
    known = set(paths(SHAPE))
    assert RULES.keys() <= known
    assert [path for path in known if rule_of(path, RULES) is None] == []


def test_every_member_that_is_refused_is_told_at_once_with_what_to_give_instead() -> None:
    assert all(bool(rule.instead) == (rule.support is Support.REFUSED) for rule in RULES.values())
    system = {
        "FileSystemId": "fs-0123456789abcdef0",
        "FileSystemAccessMode": "ro",
        "FileSystemType": "EFS",
        "DirectoryPath": "/data",
    }
    channel = {"ChannelName": "training", "DataSource": {"FileSystemDataSource": system}}
    request = REQUEST | {
        "AlgorithmSpecification": {"TrainingInputMode": "File", "AlgorithmName": "a"},
        "InputDataConfig": [channel],
        "VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
    }
    with pytest.raises(ApiError) as refused:
        TrainingRequest.parse(request)
    assert refused.value.message == (
        "AlgorithmSpecification.AlgorithmName is not offered by the local platform; use TrainingImage. "
        "InputDataConfig.DataSource.FileSystemDataSource is not offered by the local platform; use an S3DataSource."
    )


def test_the_page_says_what_becomes_of_each_member() -> None:
    table = PAGE.read_text().split("## Members of a CreateTrainingJob")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(.+)` \| (\w+) \| (.*) \|$", table, re.MULTILINE)
    assert [(path, support, note.strip()) for path, support, note in rows] == [
        (path, rule.support.value, rule.note) for path, rule in RULES.items()
    ]


def test_the_members_that_ask_for_what_is_not_done_are_told_and_no_others() -> None:
    assert only_recorded(REQUEST, RULES) == []
    asked = REQUEST | {
        "VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
        "EnableInterContainerTrafficEncryption": False,
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/a", "KmsKeyId": "key"},
    }
    assert only_recorded(asked, RULES) == ["OutputDataConfig.KmsKeyId", "VpcConfig"]


@pytest.mark.parametrize("seed", range(5))
def test_a_request_of_any_form_is_refused_in_aws_s_form_or_each_of_its_members_has_its_fate(seed: int) -> None:
    chance, taken, refused = random.Random(seed), 0, 0
    for _ in range(1000):
        request = {**REQUEST, **drawn(SHAPE, chance, share=0.08), "TrainingJobName": "job"}
        try:
            parsed = TrainingRequest.parse(request)
        except ApiError as error:
            assert error.status == 400, error
            refused += 1
            continue
        taken += 1
        present = set(present_paths(request))
        fates = {path: rule_of(path, RULES) for path in present}
        assert [path for path, rule in fates.items() if rule is None or refuses(path, present)] == []
        shown = TrainingRecord(parsed, "arn").describe()
        assert request.keys() & SHOWN.members.keys() <= shown.keys()
    assert min(taken, refused) > 100


def refuses(path: str, present: set[str]) -> bool:
    rule = rule_of(path, RULES)
    assert rule is not None
    return rule.support is Support.REFUSED


def present_paths(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from present_paths(each, path)
    elif isinstance(value, Mapping) and path not in ("HyperParameters", "Environment"):
        for name, inner in value.items():
            if not path.endswith("Parameters"):
                yield (inside := f"{path}.{name}".lstrip("."))
                yield from present_paths(inner, inside)


def drawn(shape: Any, chance: random.Random, *, share: float) -> Any:
    """A random value of a shape: of a structure's optional members, each with some chance."""
    if isinstance(shape, StructureShape):
        names = [name for name in shape.members if name in shape.required_members or chance.random() < share]
        inner = 0.3  # what is there is to hold something
        names = [name for name in names if share == inner or name not in REQUEST or chance.random() < 0.3]
        return {name: drawn(shape.members[name], chance, share=inner) for name in names}
    if isinstance(shape, ListShape):
        most = min(2, shape.metadata.get("max", 2))
        return [drawn(shape.member, chance, share=share) for _ in range(max(shape.metadata.get("min", 0), most))]
    if isinstance(shape, MapShape):
        return {drawn(shape.key, chance, share=share): drawn(shape.value, chance, share=share)}
    if shape.type_name == "string":
        return chance.choice(texts(shape))
    if shape.type_name == "boolean":
        return chance.random() < 0.5
    least = shape.metadata.get("min", 0)
    return chance.choice([least, least + 1, min(shape.metadata.get("max", 10**6), 10**6)])


def texts(shape: Any) -> list[str]:
    """Some texts that a shape's model allows; if none of ours is, one that it does not."""
    known = list(getattr(shape, "enum", None) or ())
    tried = known or [*TEXTS, *(f"arn:aws:{arn}" for arn in ARNS), "a" * shape.metadata.get("min", 0)]
    return [text for text in tried if not list(violations(shape, text))][:20] or ["a"]
