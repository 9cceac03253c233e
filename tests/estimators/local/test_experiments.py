"""Experiments as a vanilla boto3 client and the SDK's own classes see them, of jobs that really run."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from estimators import Estimator
from estimators.local import LocalSageMaker
from tests.estimators.local.submitted_jobs import await_end, await_that, job_request

PRINTS = "for loss in 4 2 nan 0; do echo loss=$loss; done"
LOGS = """
from sagemaker.experiments import load_run

with load_run() as run:
    run.log_parameter("from_script", 7)
    for step, accuracy in enumerate((0.5, 0.9)):
        run.log_metric("accuracy", accuracy, step=step)
"""


def request(platform: LocalSageMaker, name: str, script: str = "true", **changes: Any) -> dict[str, Any]:
    asked = job_request(platform, name, script, **changes)
    asked["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "loss", "Regex": r"loss=(\S+)"}]
    return asked


def names(answer: dict[str, Any]) -> list[str]:
    return sorted(each["TrialComponentName"] for each in answer["TrialComponentSummaries"])


def found(client: Any, *conditions: tuple[str, str, str], resource: str = "ExperimentTrialComponent") -> list[Any]:
    filters = [dict(zip(("Name", "Operator", "Value"), each, strict=True)) for each in conditions]
    answer = client.search(Resource=resource, SearchExpression={"Filters": filters})
    return [next(iter(result.values())) for result in answer["Results"]]


def test_a_job_has_a_trial_component_that_follows_it(platform: LocalSageMaker) -> None:
    client = platform.boto_session.client("sagemaker")
    client.create_experiment(ExperimentName="digits")
    client.create_trial(TrialName="Adam", ExperimentName="digits")
    channel = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{platform.default_bucket}/none"}
    platform.boto_session.client("s3").put_object(Bucket=platform.default_bucket, Key="none", Body=b"")
    config = {"ExperimentName": "digits", "TrialName": "adam", "TrialComponentDisplayName": "Training"}
    asked = request(
        platform,
        "follows",
        f"trap 'exit 0' TERM; {PRINTS}; while :; do sleep 0.05; done",
        ExperimentConfig=config,
        HyperParameters={"lr": "0.1", "name": '"adam"', "sagemaker_submit_directory": '"s3://bucket/code.tar.gz"'},
        InputDataConfig=[{"ChannelName": "train", "ContentType": "text/csv", "DataSource": {"S3DataSource": channel}}],
    )
    arn = client.create_training_job(**asked)["TrainingJobArn"]

    def component() -> dict[str, Any]:
        return dict(client.describe_trial_component(TrialComponentName="follows-aws-training-job"))

    running = await_that(lambda: (now := component()).get("Metrics") and now["Metrics"][0]["Count"] == 3 and now)
    assert running["Status"]["PrimaryStatus"] == "InProgress"
    assert "EndTime" not in running
    client.stop_training_job(TrainingJobName="follows")
    job = await_end(platform, "follows")
    ended = component()
    assert ended["DisplayName"] == "Training"
    assert ended["Source"] == {"SourceArn": arn, "SourceType": "SageMakerTrainingJob"}
    assert ended["Status"] == {
        "PrimaryStatus": "Stopped",
        "Message": "Status: Stopped, secondary status: Stopped, failure reason: .",
    }
    assert (ended["StartTime"], ended["EndTime"]) == (job["TrainingStartTime"], job["TrainingEndTime"])
    assert ended["Parameters"] == {
        "lr": {"NumberValue": 0.1},
        "name": {"StringValue": '"adam"'},
        "sagemaker_submit_directory": {"StringValue": '"s3://bucket/code.tar.gz"'},
        "SageMaker.ImageUri": {"StringValue": "an-image"},
        "SageMaker.InstanceType": {"StringValue": "ml.m5.large"},
        "SageMaker.InstanceCount": {"NumberValue": 1.0},
        "SageMaker.VolumeSizeInGB": {"NumberValue": 1.0},
    }
    assert ended["InputArtifacts"] == {
        "code": {"Value": "s3://bucket/code.tar.gz"},
        "train": {"MediaType": "text/csv", "Value": channel["S3Uri"]},
    }
    metric = ended["Metrics"][0]
    assert (metric["MetricName"], metric["SourceArn"]) == ("loss", arn)
    assert [metric[each] for each in ("Min", "Max", "Avg", "Last", "Count")] == [0.0, 4.0, 2.0, 0.0, 3]
    assert metric["StdDev"] == pytest.approx((8 / 3) ** 0.5)
    for chosen in ({"TrialName": "Adam"}, {"ExperimentName": "digits"}, {"SourceArn": arn.upper()}):
        assert names(client.list_trial_components(**chosen)) == ["follows-aws-training-job"]
    (result,) = found(client, ("Parents.ExperimentName", "Equals", "digits"), ("Metrics.loss.Max", "GreaterThan", "3"))
    assert result["Parents"] == [{"TrialName": "Adam", "ExperimentName": "digits"}]
    client.delete_training_job(TrainingJobName="follows")
    assert component()["Status"] == ended["Status"]
    assert component()["Metrics"] == ended["Metrics"]


def test_an_experiment_without_a_trial_gets_one_and_an_unknown_one_refuses_the_job(platform: LocalSageMaker) -> None:
    client = platform.boto_session.client("sagemaker")
    client.create_experiment(ExperimentName="alone")
    client.create_experiment(ExperimentName="other")
    for config, said in (
        ({"ExperimentName": "none"}, r"Experiment 'arn:.*:experiment/none' does not exist"),
        ({"ExperimentName": "alone", "TrialName": "none"}, r"Trial 'arn:.*:experiment-trial/none' does not exist"),
    ):
        with pytest.raises(ClientError, match=rf"\(ResourceNotFound\).*{said}"):
            client.create_training_job(**request(platform, "refused", ExperimentConfig=config))
    with pytest.raises(ClientError, match="no training job refused"):
        client.describe_training_job(TrainingJobName="refused")
    client.create_training_job(**request(platform, "first", ExperimentConfig={"ExperimentName": "alone"}))
    (trial,) = client.list_trials(ExperimentName="alone")["TrialSummaries"]
    assert names(client.list_trial_components(TrialName=trial["TrialName"])) == ["first-aws-training-job"]
    wrong = {"ExperimentName": "other", "TrialName": trial["TrialName"]}
    with pytest.raises(ClientError, match=r"is of the experiment alone, and not of other"):
        client.create_training_job(**request(platform, "refused", ExperimentConfig=wrong))
    await_end(platform, "first")
    # What refuses the job later leaves neither trial nor component, and a deleted job's name can be taken again.
    again = request(platform, "first", ExperimentConfig={"ExperimentName": "alone"})
    with pytest.raises(ClientError, match="ResourceInUse"):
        client.create_training_job(**again)
    assert len(client.list_trials(ExperimentName="alone")["TrialSummaries"]) == 1
    client.delete_training_job(TrainingJobName="first")
    client.create_training_job(**again)
    assert names(client.list_trial_components(ExperimentName="alone")) == ["first-aws-training-job"]
    await_end(platform, "first")


def test_what_is_made_by_hand_is_true(platform: LocalSageMaker) -> None:
    client = platform.boto_session.client("sagemaker")
    metrics = platform.boto_session.client("sagemaker-metrics")
    client.create_experiment(ExperimentName="by-hand", Description="d", Tags=[{"Key": "team", "Value": "red"}])
    for trial in ("one", "two"):
        client.create_trial(TrialName=f"by-hand-{trial}", ExperimentName="by-hand")
    with pytest.raises(ClientError, match=r"\(ValidationException\).*already exists"):
        client.create_experiment(ExperimentName="By-Hand")
    made = {
        "Status": {"PrimaryStatus": "InProgress", "Message": "begun"},
        "StartTime": datetime(2030, 1, 2, tzinfo=timezone.utc),
        "Parameters": {"a": {"NumberValue": 1.0}, "b": {"StringValue": "x"}},
        "OutputArtifacts": {"plot": {"MediaType": "image/png", "Value": "s3://b/plot.png"}},
    }
    arn = client.create_trial_component(TrialComponentName="made", **made)["TrialComponentArn"]
    client.add_tags(ResourceArn=arn, Tags=[{"Key": "team", "Value": "blue"}])
    client.update_trial_component(
        TrialComponentName="made",
        Status={"PrimaryStatus": "Completed"},
        Parameters={"c": {"NumberValue": 3.0}},
        ParametersToRemove=["b"],
    )
    for value, minute in ((1.0, 2), (4.0, 1)):
        time = datetime(2030, 1, 2, 0, minute, tzinfo=timezone.utc)
        data = [{"MetricName": "f1", "Timestamp": time, "Step": 0, "Value": value}]
        metrics.batch_put_metrics(TrialComponentName="made", MetricData=data)
    described = client.describe_trial_component(TrialComponentName=arn)
    assert described["Status"] == {"PrimaryStatus": "Completed"}
    assert described["StartTime"] == made["StartTime"]
    assert described["Parameters"] == {"a": {"NumberValue": 1.0}, "c": {"NumberValue": 3.0}}
    assert described["OutputArtifacts"] == made["OutputArtifacts"]
    (metric,) = described["Metrics"]
    assert [metric[each] for each in ("Min", "Max", "Avg", "StdDev", "Last", "Count")] == [1.0, 4.0, 2.5, 1.5, 1.0, 2]
    assert "Source" not in described
    assert client.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "blue"}]
    with pytest.raises(ClientError, match="a has 2 values: give a StringValue or a NumberValue"):
        both = {"NumberValue": 1.0, "StringValue": "1"}
        client.update_trial_component(TrialComponentName="made", Parameters={"a": both})
    with pytest.raises(ClientError, match=r"TrialComponent .* does not exist"):
        metrics.batch_put_metrics(TrialComponentName="none", MetricData=data)
    for trial in ("one", "two"):
        client.associate_trial_component(TrialComponentName="made", TrialName=f"by-hand-{trial}")
    for _ in range(2):  # twice is once
        client.associate_trial_component(TrialComponentName="made", TrialName="by-hand-two")
    (result,) = found(client, ("Parents.TrialName", "Equals", "by-hand-two"), ("Tags.team", "Equals", "blue"))
    assert [each["TrialName"] for each in result["Parents"]] == ["by-hand-one", "by-hand-two"]
    (two,) = found(client, ("TrialName", "Contains", "hand-t"), resource="ExperimentTrial")
    assert two["ExperimentName"] == "by-hand"
    assert [each["TrialComponentName"] for each in two["TrialComponentSummaries"]] == ["made"]
    with pytest.raises(ClientError, match="disassociate it first from by-hand-one, by-hand-two"):
        client.delete_trial_component(TrialComponentName="made")
    for trial in ("one", "two"):
        with pytest.raises(ClientError, match=r"by-hand has trials|has trial components"):
            client.delete_trial(TrialName=f"by-hand-{trial}")
        client.disassociate_trial_component(TrialComponentName="made", TrialName=f"by-hand-{trial}")
        with pytest.raises(ClientError, match="by-hand has trials"):
            client.delete_experiment(ExperimentName="by-hand")
        client.delete_trial(TrialName=f"by-hand-{trial}")
    client.delete_trial_component(TrialComponentName="made")
    client.delete_experiment(ExperimentName="by-hand")
    with pytest.raises(ClientError, match=r"\(ResourceNotFound\)"):
        client.describe_experiment(ExperimentName="by-hand")


def test_lists_have_pages_and_an_order(platform: LocalSageMaker) -> None:
    client = platform.boto_session.client("sagemaker")
    client.create_experiment(ExperimentName="pages")
    client.create_trial(TrialName="pages", ExperimentName="pages")
    for number in range(5):
        client.create_trial_component(TrialComponentName=f"page-{number}")
        client.associate_trial_component(TrialComponentName=f"page-{number}", TrialName="pages")
    listed = client.get_paginator("list_trial_components").paginate(
        TrialName="pages", SortBy="Name", SortOrder="Descending", PaginationConfig={"PageSize": 2}
    )
    pages = [[each["TrialComponentName"] for each in page["TrialComponentSummaries"]] for page in listed]
    assert pages == [["page-4", "page-3"], ["page-2", "page-1"], ["page-0"]]
    assert client.list_trial_components(CreatedAfter=datetime(2100, 1, 1))["TrialComponentSummaries"] == []
    with pytest.raises(ClientError, match="give one of them"):
        client.list_trial_components(TrialName="pages", ExperimentName="pages")


@pytest.mark.timeout(120)
def test_the_sdk_s_run_around_fit_and_load_run_in_the_script(platform: LocalSageMaker, tmp_path: Path) -> None:
    from sagemaker.analytics import ExperimentAnalytics
    from sagemaker.experiments import Run, list_runs

    (tmp_path / "script.py").write_text(LOGS)
    estimator = Estimator(
        tmp_path / "script.py",
        role=platform.role,
        instance_type="ml.m5.large",
        sagemaker_session=platform.session,
    )
    with Run("runs", run_name="first", sagemaker_session=platform.session) as run:
        run.log_parameter("from_submit", "x")
        run.log_metric("size", 3.0)
        estimator.fit(job_name="of-a-run", wait=False)
        job = await_end(platform, "of-a-run")
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert job["ExperimentConfig"]["RunName"] == "runs-first"
    client = platform.boto_session.client("sagemaker")
    component = client.describe_trial_component(TrialComponentName="runs-first")
    assert component["Status"]["PrimaryStatus"] == "Completed"
    assert component["Parameters"] == {"from_script": {"NumberValue": 7.0}, "from_submit": {"StringValue": "x"}}
    assert {each["MetricName"]: each["Last"] for each in component["Metrics"]} == {"size": 3.0, "accuracy": 0.9}
    assert [each["SourceArn"] for each in component["Sources"]] == [job["TrainingJobArn"]]
    assert [each.run_name for each in list_runs("runs", sagemaker_session=platform.session)] == ["first"]
    table = ExperimentAnalytics("runs", sagemaker_session=platform.session, sort_by="metrics.accuracy.max").dataframe()
    assert list(table["TrialComponentName"]) == ["runs-first", "of-a-run-aws-training-job"]
    assert table["accuracy - Max"][0] == 0.9
    assert table["SageMaker.ModelArtifact - Value"][1] == job["ModelArtifacts"]["S3ModelArtifacts"]


@pytest.mark.seaweedfs
def test_experiments_outlive_a_killed_platform(tmp_path: Path) -> None:
    with LocalSageMaker(tmp_path, storage="disk") as platform:
        client = platform.boto_session.client("sagemaker")
        client.create_experiment(ExperimentName="kept")
        config = {"ExperimentName": "kept"}
        client.create_training_job(**request(platform, "done", PRINTS, ExperimentConfig=config))
        client.create_training_job(**request(platform, "running", "sleep 300", ExperimentConfig=config))
        await_end(platform, "done")
        made = {"StartTime": datetime(2030, 1, 2, tzinfo=timezone.utc)}
        arn = client.create_trial_component(TrialComponentName="made", **made)["TrialComponentArn"]
        client.add_tags(ResourceArn=arn, Tags=[{"Key": "team", "Value": "blue"}])
        data = [{"MetricName": "f1", "Timestamp": made["StartTime"], "Value": 2.0}]
        platform.boto_session.client("sagemaker-metrics").batch_put_metrics(TrialComponentName="made", MetricData=data)

        def described(client: Any, name: str) -> dict[str, Any]:
            return {**client.describe_trial_component(TrialComponentName=name), "ResponseMetadata": None}

        await_that(lambda: "StartTime" in described(client, "running-aws-training-job"))
        before = [described(client, name) for name in ("done-aws-training-job", "made")]
        os.kill(platform.server_pid, signal.SIGKILL)
        platform.stop()
    with LocalSageMaker(tmp_path, storage="disk") as platform:
        client = platform.boto_session.client("sagemaker")
        assert [described(client, name) for name in ("done-aws-training-job", "made")] == before
        assert client.list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "blue"}]
        broken = described(client, "running-aws-training-job")["Status"]
        assert broken["PrimaryStatus"] == "Failed"
        assert "The local platform ended while the job ran" in broken["Message"]
        listed = names(client.list_trial_components(ExperimentName="kept"))
        assert listed == ["done-aws-training-job", "running-aws-training-job"]
