"""What the SDK refuses in a finished job, it refuses before anything is uploaded, and plan() says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from estimators import Estimator
from estimators.errors import EstimatorError
from estimators.request.job_request import JobRequest
from estimators.sdk import v2

ROLE = "arn:aws:iam::123456789012:role/SageMaker"

Call = tuple[dict[str, Any], Any]


def with_profiler(**others: Any) -> Call:
    from sagemaker.debugger import ProfilerConfig

    return {"profiler_config": ProfilerConfig(), "disable_profiler": True, **others}, None


def with_profiler_rule() -> Call:
    from sagemaker.debugger import ProfilerRule, rule_configs

    return {"rules": [ProfilerRule.sagemaker(rule_configs.LowGPUUtilization())], "disable_profiler": True}, None


def with_groups_alone() -> Call:
    from sagemaker.instance_group import InstanceGroup

    groups = [InstanceGroup("gpus", "ml.g5.xlarge", 1)]
    return {"instance_type": None, "instance_groups": groups, "distribution": {"instance_groups": groups}}, None


REFUSED: dict[str, tuple[Callable[[], Call], str]] = {
    "profiler on and off": (with_profiler, "disable_profiler"),
    "a rule for a profiler that is off": (with_profiler_rule, "ProfilerRule"),
    "a distribution of groups alone": (with_groups_alone, "no distribution strategies enabled"),
    "a channel named as the model's": (
        lambda: ({"model_uri": "s3://jobs/model.tar.gz"}, {"model": "s3://jobs/data"}),
        "Duplicate channel model",
    ),
    "a path": (lambda: ({}, Path("data")), r"inputs\['training'\]: data is a path.*upload_data"),
    "a number": (lambda: ({}, {"training": 3}), "the SDK refuses the job: .*Cannot format input 3"),
    "a list": (lambda: ({}, ["s3://jobs/data"]), "inputs: is .*of type list. Give one URI, or a dict"),
    "a list of numbers": (lambda: ({}, [3]), "List compatible only"),
    "no channel in a dict": (lambda: ({}, {}), "A job without channels takes none"),
    "a rule that is none": (lambda: ({"rules": ["LossNotDecreasing"]}, None), "Rules list"),
}


def uploaded(session: Any) -> list[str]:
    objects = session.boto_session.client("s3").list_objects_v2(Bucket=session.default_bucket()).get("Contents", [])
    return [each["Key"] for each in objects]


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_sdk_refuses_is_found_before_the_upload(name: str, script: str, sagemaker_session: Any) -> None:
    case, message = REFUSED[name]
    arguments, inputs = case()
    common = {"entry_point": script, "role": ROLE, "instance_type": "ml.g5.xlarge"}
    given = {key: value for key, value in {**common, **arguments}.items() if value is not None}
    estimator = Estimator(**given, sagemaker_session=sagemaker_session)
    before = uploaded(sagemaker_session)
    assert len(estimator.plan(inputs).errors) == 1
    with pytest.raises(EstimatorError, match=message):
        estimator.fit(inputs, wait=False)
    assert uploaded(sagemaker_session) == before


@pytest.mark.parametrize("base", ["-x", "a b", "ü"])
def test_a_name_that_the_sdk_makes_is_looked_at_as_one_that_is_given(
    base: str, script: str, sagemaker_session: Any
) -> None:
    estimator = Estimator(
        script, role=ROLE, instance_type="ml.g5.xlarge", base_job_name=base, sagemaker_session=sagemaker_session
    )
    (problem,) = estimator.plan().errors
    assert problem.parameter == "base_job_name"
    assert repr(base)[1:-1] in problem.found


def test_looking_changes_nothing_of_the_users_objects(script: str, sagemaker_session: Any) -> None:
    from sagemaker.debugger import ProfilerConfig

    profiler = ProfilerConfig()
    estimator = Estimator(
        entry_point=script,
        role="a-name-that-only-iam-knows",
        instance_type="ml.g5.xlarge",
        profiler_config=profiler,
        sagemaker_session=sagemaker_session,
    )
    assert estimator.plan().errors == ()
    assert profiler.s3_output_path is None


def test_a_recipe_says_how_many_hosts_there_are(
    tmp_path: Path, sagemaker_session: Any, requests: list[dict[str, Any]]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    run = "{name: nova, model_type: 'amazon.nova-lite-v1:0:300k', model_name_or_path: nova-lite/prod, replicas: 4}"
    recipe.write_text(f"run: {run}\ntraining_config: {{}}\n")
    estimator = Estimator(
        training_recipe=str(recipe),
        role=ROLE,
        instance_type="ml.p5.48xlarge",
        image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
        sagemaker_session=sagemaker_session,
    )
    assert str(estimator.plan()).startswith("as many as the recipe says × ml.p5.48xlarge")
    estimator.fit(wait=False)
    assert requests[-1]["ResourceConfig"]["InstanceCount"] == 4


def test_a_plan_of_no_session_asks_nobody(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr("botocore.httpsession.URLLib3Session.send", lambda *_: pytest.fail("the network was asked"))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    assert Estimator(entry_point=script, role="a-name", instance_type="ml.g5.xlarge").plan().errors == ()


def test_a_request_without_the_code_is_refused(
    script: str, sagemaker_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = v2.request

    def without_code(*arguments: Any, **options: Any) -> dict[str, Any]:
        members = build(*arguments, **options)
        texts = {name: text for name, text in members["HyperParameters"].items() if "submit_directory" not in name}
        return {**members, "HyperParameters": texts}

    monkeypatch.setattr(v2, "request", without_code)
    estimator = Estimator(
        entry_point=script, role=ROLE, instance_type="ml.g5.xlarge", sagemaker_session=sagemaker_session
    )
    (problem,) = estimator.plan().errors
    assert "leaves the code out of the request" in str(problem)


def test_code_that_is_refused_keeps_the_sources_of_rules_here() -> None:
    uploaded: list[Any] = []
    session: Any = SimpleNamespace(upload_data=lambda **place: uploaded.append(place))
    place = {"path": "rule.py", "bucket": "jobs", "key_prefix": "rules"}
    request = JobRequest(members={"RoleArn": "arn"}, session=session, uploads=(place,))

    def refuse() -> None:
        raise EstimatorError("too large")

    with pytest.raises(EstimatorError, match="too large"):
        request.complete(refuse)
    assert uploaded == []
    request.complete(lambda: None)
    assert uploaded == [place]
