"""The API's limits, as botocore states them."""

from __future__ import annotations

from typing import Any

import botocore.session
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.checks import aws_limits


def found(parameter: str, value: Any) -> list[str]:
    return [f"{problem.severity}: {problem}" for problem in aws_limits.check(parameter, value)]


@pytest.fixture(scope="module")
def request_shape() -> Any:
    model = botocore.session.get_session().get_service_model("sagemaker")
    return model.operation_model("CreateTrainingJob").input_shape


@pytest.mark.parametrize("parameter", aws_limits.FIELDS)
def test_every_field_is_one_of_the_api(parameter: str, request_shape: Any) -> None:
    shape = request_shape
    for name in aws_limits.FIELDS[parameter].split("."):
        shape = shape.members[name]


@pytest.mark.parametrize(
    ("parameter", "good", "bad", "said"),
    [
        ("job_name", "a-1", "a_1", "'a_1' is not of the form"),
        ("job_name", "a" * 63, "a" * 64, "64 characters. The most is 63"),
        ("hyperparameters", {"a": "x" * 2500}, {"a": "x" * 2501}, "The most is 2500 characters. A script on this"),
        ("hyperparameters", {"a" * 256: ""}, {"a" * 257: ""}, "257 characters. The most is 256"),
        (
            "hyperparameters",
            {f"h{number}": "1" for number in range(100)},
            {f"h{number}": "1" for number in range(101)},
            "101 entries. The most is 100",
        ),
        ("environment", {"A_1": "x" * 512}, {"A_1": "x" * 513}, "['A_1'] has 513 characters. The most is 512"),
        ("environment", {"A": "1"}, {"A-B": "1"}, "the name 'A-B' is not of the form"),
        ("environment", {"A": "1"}, {"A": 1}, "['A'] is 1, of type int. Give text"),
        ("environment", {"A": "1"}, {"A": "\0"}, "['A'] has the character U+0000"),
        ("tags", [{"Key": "a", "Value": ""}], [{"Key": "a"}], "[0] lacks Value"),
        ("tags", [{"Key": "größe", "Value": ""}], [{"Key": "a|b", "Value": ""}], "[0]['Key'] 'a|b' is not of the form"),
        (
            "metric_definitions",
            [{"Name": "m", "Regex": "x"}],
            [{"Name": "m", "Regex": "x", "Unit": "s"}],
            "[0] has 'Unit'",
        ),
        ("keep_alive_period_in_seconds", 21600, 21601, "is 21601. The most is 21600"),
        ("max_run", 1, 0, "is 0. The least is 1"),
        ("max_run", 60, 60.0, "is 60.0, of type float. Give a whole number"),
        ("max_retry_attempts", 30, 31, "The most is 30"),
        ("input_mode", "FastFile", "Fast", "does not know. Did you mean 'FastFile'"),
        ("role", "arn:aws:iam::123456789012:role/service-role/A", "arn:aws:iam::1:role/A", "not of the form"),
    ],
)
def test_a_value_beyond_a_limit_is_found(parameter: str, good: Any, bad: Any, said: str) -> None:
    assert not found(parameter, good)
    assert said in "\n".join(found(parameter, bad))


def test_an_instance_type_that_botocore_does_not_know_is_only_a_warning() -> None:
    (problem,) = aws_limits.check("instance_type", "ml.g99.xlarge")
    assert problem.severity == "warning"


def test_an_instance_type_like_no_other_is_told_with_a_few_of_the_hundreds_there_are() -> None:
    (told,) = found("instance_type", "nonsense")
    assert "such as ml.c4.2xlarge, " in told
    assert "If it is new at AWS" in told
    assert len(told) < 400


def test_a_value_that_is_not_known_yet_is_passed_over() -> None:
    assert not found("max_run", object())


def test_a_long_value_is_not_repeated() -> None:
    secret = "s3cret" * 200
    assert secret not in "\n".join(found("environment", {"TOKEN": secret}))
    assert "s3cret" not in "\n".join(found("environment", {"TOKEN": secret}))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
@pytest.mark.slow
def test_job_names_are_judged_as_their_pattern_does(name: str) -> None:
    import re

    pattern = r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"
    assert bool(found("job_name", name)) == (len(name) > 63 or re.fullmatch(pattern, name) is None)


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("ml.p9-b300.48xlarge", "warning"),
        ("ml.g5.96xlarge", "warning"),
        ("ml.m9i-flex.metal-24xl", "warning"),
        ("ml.g5.xlarge2", "error"),
        ("ml.g5.xlrge", "error"),
        ("ml.g5xlarge", "error"),
    ],
)
def test_an_unknown_instance_type_is_a_warning_only_if_aws_may_have_added_it(name: str, severity: str) -> None:
    (said,) = found("instance_type", name)
    assert said.startswith(f"{severity}: instance_type: is '{name}', which the installed botocore does not know. ")
    assert "pip install -U boto3" in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ml.g5.3xlarge", "Did you mean 'ml.g5.2xlarge' or 'ml.g5.4xlarge'? The sizes of ml.g5 are xlarge, 2xlarge, "),
        ("ml.p3.xlarge", "Did you mean 'ml.p3.2xlarge'? The sizes of ml.p3 are 2xlarge, 8xlarge, 16xlarge. If "),
        ("ml.g5.large", "Did you mean 'ml.g5.xlarge'? The sizes"),
        ("ml.g5.metal", "Did you mean 'ml.g5.48xlarge'? The sizes"),
        ("ml.g5.twoxlarge", "The sizes of ml.g5 are xlarge, 2xlarge, 4xlarge, 8xlarge, 12xlarge, 16xlarge, 24xlarge, "),
    ],
)
def test_an_unknown_size_of_a_known_family_is_told_with_the_next_sizes(name: str, said: str) -> None:
    (told,) = found("instance_type", name)
    assert said in told
