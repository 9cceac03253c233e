"""A job in a pipeline of SDK V2: its step is vanilla's, and what a variable will be is not guessed."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from estimators import Estimator
from estimators.errors import EstimatorError
from tests.estimators.test_request import PLACE, differing, documented_differences

ROLE = "arn:aws:iam::123456789012:role/SageMaker"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"


@pytest.fixture
def session(sagemaker_session: Any) -> Iterator[Any]:
    from sagemaker.workflow.pipeline_context import PipelineSession

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "no job being started", at each fit()
        yield PipelineSession(sagemaker_session.boto_session, default_bucket=sagemaker_session.default_bucket())


def string(name: str, default: str | None = None) -> Any:
    from sagemaker.workflow.parameters import ParameterString

    return ParameterString(name=name, default_value=default)


def integer(name: str, default: int | None = None) -> Any:
    from sagemaker.workflow.parameters import ParameterInteger

    return ParameterInteger(name=name, default_value=default)


def boolean(name: str, default: bool | None = None) -> Any:
    from sagemaker.workflow.parameters import ParameterBoolean

    return ParameterBoolean(name=name, default_value=default)


def channel(place: Any) -> Any:
    from sagemaker.inputs import TrainingInput

    return TrainingInput(place, content_type="text/csv")


def definition(kind: Any, session: Any, arguments: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    """The pipeline of one step, as it is sent."""
    from sagemaker.workflow.pipeline import Pipeline
    from sagemaker.workflow.steps import TrainingStep

    step = TrainingStep("Train", step_args=kind(**arguments, sagemaker_session=session).fit(**call))
    variables = [each for each in arguments.values() if hasattr(each, "default_value")]
    pipeline = Pipeline("digits", variables, steps=[step], sagemaker_session=session)
    found: dict[str, Any] = json.loads(pipeline.definition())
    return found


Case = Callable[[], tuple[dict[str, Any], dict[str, Any]]]
CASES: dict[str, Case] = {
    "no variables": lambda: ({}, {"inputs": "s3://jobs/data"}),
    "variables with defaults": lambda: (
        {
            "instance_count": integer("Hosts", 2),
            "instance_type": string("Type", "ml.g5.xlarge"),
            "max_run": integer("Seconds", 600),
            "hyperparameters": {"lr": string("Rate", "0.1"), "epochs": 3},
            "output_path": string("Output", "s3://jobs/models"),
            "environment": {"A": string("Variable", "1")},
            "use_spot_instances": boolean("Spot", True),
            "max_wait": integer("Wait", 700),
            "checkpoint_s3_uri": string("Checkpoints", "s3://jobs/checkpoints"),
        },
        {"inputs": {"training": channel(string("Data", "s3://jobs/data"))}},
    ),
    "variables without defaults": lambda: (
        {
            "instance_count": integer("Hosts"),
            "volume_size": integer("Size"),
            "hyperparameters": {"lr": string("Rate")},
            "encrypt_inter_container_traffic": boolean("Encrypted"),
            "image_uri": IMAGE,
        },
        {"inputs": {"training": channel(string("Data"))}},
    ),
}


@pytest.mark.usefixtures("telemetry")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_the_step_is_the_one_of_vanilla_pytorch(name: str, script: str, session: Any) -> None:
    from sagemaker.pytorch import PyTorch

    arguments, call = CASES[name]()
    versions = {} if "image_uri" in arguments else {"framework_version": "2.6.0", "py_version": "py312"}
    common = {"entry_point": script, "role": ROLE, "instance_type": "ml.m5.xlarge", "instance_count": 1, **versions}
    arguments = {**common, **arguments}
    vanilla, ours = (definition(kind, session, arguments, call) for kind in (PyTorch, Estimator))
    assert vanilla["Parameters"] == ours["Parameters"]
    (theirs,), (mine,) = ([step["Arguments"] for step in each["Steps"]] for each in (vanilla, ours))
    assert differing(theirs, mine) == documented_differences() - {PLACE}  # here the SDK, too, goes by the code's hash


def test_nothing_is_sent_and_the_bundle_of_smddp_goes_with_the_step(
    script: str, session: Any, requests: list[dict[str, Any]]
) -> None:
    Path(script).write_text("import smddp\n")
    step = definition(Estimator, session, {"entry_point": script, "role": ROLE, "instance_type": "ml.m5.xlarge"}, {})[
        "Steps"
    ][0]
    place = json.loads(step["Arguments"]["HyperParameters"]["sagemaker_submit_directory"])
    assert re.fullmatch(r"s3://jobs/digits/code/[0-9a-f]{64}/sourcedir.tar.gz", place)
    key = place.removeprefix("s3://jobs/")
    assert session.boto_session.client("s3").head_object(Bucket="jobs", Key=key)["ContentLength"] > 100_000
    assert requests == []


def test_the_plan_says_what_is_not_checked(script: str, session: Any) -> None:
    arguments, call = CASES["variables with defaults"]()
    plan = Estimator(**{"entry_point": script, "role": ROLE, **arguments}, sagemaker_session=session).plan(**call)
    assert plan.errors == ()
    assert str(plan.topology).startswith("2 × ml.g5.xlarge")
    told = {problem.parameter: problem.found for problem in plan.warnings}
    assert told["instance_count"] == "is decided by the pipeline's Hosts when it runs: its default, 2, is checked"
    assert told.keys() == arguments.keys() | {"inputs"}


def test_a_default_is_checked_as_a_value_is(script: str, session: Any) -> None:
    job = Estimator(
        script, role=ROLE, instance_type="ml.m5.xlarge", instance_count=integer("Hosts", 0), sagemaker_session=session
    )
    with pytest.raises(EstimatorError, match="instance_count: it is 0"):
        job.fit()


@pytest.mark.parametrize("inner", [lambda each: {"lr": each}, lambda each: [1, [each]]], ids=["dict", "list"])
@pytest.mark.parametrize("default", ["0.1", None])
def test_a_variable_inside_a_hyperparameter_is_refused(
    inner: Callable[[Any], Any], default: str | None, script: str, session: Any
) -> None:
    parameters = {"hyperparameters": {"optimizer": inner(string("Rate", default)), "lr": string("Rate", default)}}
    (found,) = errors_of(script, session, instance_type="ml.g5.xlarge", **parameters)
    assert "hyperparameters: 'optimizer' has the pipeline's Rate inside it" in found


def test_a_type_that_the_pipeline_decides_is_refused_where_the_sdk_must_see_it(script: str, session: Any) -> None:
    by_pipeline = string("Type", "ml.g5.xlarge")
    (found,) = errors_of(script, session, instance_type=by_pipeline, distribution="torchrun")
    assert "distribution: the SDK refuses it for an instance_type that the pipeline decides" in found
    assert "Give an image_uri" in found
    assert not errors_of(script, session, instance_type=by_pipeline, distribution="torchrun", image_uri=IMAGE)
    assert not errors_of(script, session, instance_type=by_pipeline, distribution="mpi")


def errors_of(script: str, session: Any, **parameters: Any) -> list[str]:
    plan = Estimator(script, role=ROLE, sagemaker_session=session, **parameters).plan()
    return [str(problem) for problem in plan.errors]


def test_what_has_no_default_is_known_to_nobody(script: str, session: Any) -> None:
    given = {"role": ROLE, "instance_type": string("Type"), "image_uri": IMAGE, "max_run": integer("Seconds")}
    job = Estimator(script, **given, instance_count=integer("Hosts"), sagemaker_session=session)
    plan = job.plan(prices={"ml.m5.xlarge": 1})
    assert plan.errors == ()
    assert str(plan.topology).startswith("(the pipeline's Hosts) × (the pipeline's Type)")
    assert plan.cost is not None
    assert plan.cost.at_most is None
    assert {problem.found.rpartition(": ")[2] for problem in plan.warnings} == {"nothing of it is checked"}
    assert str(plan)


@pytest.mark.parametrize("option", [{"rehearse": 2}, {"on_event": print}])
def test_a_step_has_nothing_to_rehearse_or_to_tell(option: dict[str, Any], script: str, session: Any) -> None:
    job = Estimator(script, role=ROLE, instance_type="ml.m5.xlarge", sagemaker_session=session)
    with pytest.raises(EstimatorError, match="With a PipelineSession, fit\\(\\) starts no job"):
        job.fit(**option)


def test_a_pipeline_of_local_mode_is_refused(script: str) -> None:
    from sagemaker.workflow.pipeline_context import LocalPipelineSession

    session = LocalPipelineSession(boto3.Session("KEY", "SECRET", region_name="us-east-1"), default_bucket="jobs")
    with pytest.raises(EstimatorError, match=r"LocalPipelineSession, for which fit\(\) makes no step"):
        Estimator(script, role=ROLE, instance_type="local", image_uri=IMAGE, sagemaker_session=session).fit()


IN_NO_PIPELINE: dict[str, tuple[str, Case]] = {
    "hyperparameters": ("Rate", lambda: ({"hyperparameters": {"lr": string("Rate")}}, {})),
    "inside a hyperparameter": ("Size", lambda: ({"hyperparameters": {"sizes": [1, string("Size")]}}, {})),
    "instance_count": ("Hosts", lambda: ({"instance_count": integer("Hosts")}, {})),
    "instance_type": ("Type", lambda: ({"instance_type": string("Type"), "distribution": "torchrun"}, {})),
    "inputs": ("Data", lambda: ({}, {"inputs": {"training": channel(string("Data"))}})),
    "a local job": ("Variable", lambda: ({"instance_type": "local", "environment": {"A": string("Variable")}}, {})),
}


@pytest.mark.parametrize("name", IN_NO_PIPELINE)
def test_a_variable_without_a_value_is_refused_before_anything_is_uploaded(
    name: str, script: str, sagemaker_session: Any, requests: list[dict[str, Any]]
) -> None:
    """A plain session sends the job at once: no pipeline ever sets the variable."""
    variable, case = IN_NO_PIPELINE[name]
    arguments, call = case()
    given = {"entry_point": script, "role": ROLE, "image_uri": IMAGE, "instance_type": "ml.m5.xlarge", **arguments}
    before = sagemaker_session.list_s3_files("jobs", "")
    with pytest.raises(EstimatorError) as refused:
        Estimator(**given, sagemaker_session=sagemaker_session).fit(**call, wait=False)
    (problem,) = refused.value.problems
    assert f"is a pipeline's variable, {variable}, and no pipeline runs this job: it has no value" in str(problem)
    assert problem.remedy == "Give the value itself, or a PipelineSession as sagemaker_session."
    assert (requests, sagemaker_session.list_s3_files("jobs", "")) == ([], before)


def test_without_a_pipeline_the_default_is_sent(
    script: str, sagemaker_session: Any, requests: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    variables = {"instance_type": string("Type", "ml.g5.xlarge"), "hyperparameters": {"lr": [string("Rate", "0.1")]}}
    job = Estimator(script, role=ROLE, distribution="torchrun", sagemaker_session=sagemaker_session, **variables)
    job.fit(wait=False)
    assert requests[0]["ResourceConfig"]["InstanceType"] == "ml.g5.xlarge"
    assert json.loads(requests[0]["HyperParameters"]["lr"]) == ["0.1"]
    told = "instance_type: is a pipeline's variable, Type, and no pipeline runs this job: its default, "
    assert f"{told}'ml.g5.xlarge', is used" in caplog.text


@pytest.mark.parametrize("default", ["1e-3", None])
def test_a_rehearsal_takes_a_default_and_refuses_a_variable_without_one(
    default: str | None, script: str, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed: list[Any] = []
    monkeypatch.setattr("estimators.rehearsal.rehearse", lambda *given, **_: rehearsed.extend(given))
    job = Estimator(
        script,
        role=ROLE,
        instance_type="ml.m5.xlarge",
        instance_count=integer("Hosts", 2),
        hyperparameters={"lr": string("Rate", default)},
        sagemaker_session=session,
    )
    if default is None:
        with pytest.raises(
            EstimatorError, match=r"hyperparameters: is a pipeline's variable, Rate, .* it has no value"
        ):
            job.rehearse()
        assert not rehearsed
        return
    job.rehearse({"training": string("Data", "s3://jobs/data")})
    arguments, inputs = rehearsed
    assert (arguments["instance_count"], arguments["hyperparameters"]) == (2, {"lr": "1e-3"})
    assert inputs == {"training": "s3://jobs/data"}


def test_without_a_pipeline_the_default_of_a_channel_is_looked_for(script: str, sagemaker_session: Any) -> None:
    common = {"role": ROLE, "instance_type": "ml.m5.xlarge", "sagemaker_session": sagemaker_session}
    job = Estimator(script, checkpoint_s3_uri=string("Checkpoints", "s3://nowhere/run"), **common)
    with pytest.raises(EstimatorError) as refused:
        job.fit({"training": channel(string("Data", "s3://jobs/none"))}, wait=False)
    assert [problem.parameter for problem in refused.value.problems] == ["inputs['training']", "checkpoint_s3_uri"]
