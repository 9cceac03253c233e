"""Each answer has the members that botocore's model requires of it, which clients index without asking."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from estimators.local import LocalSageMaker
from estimators.local.api.offered import OFFERS
from estimators.service_model import dotted, violations
from tests.estimators.local.submitted_jobs import await_that, job_request

ENDED = ("Completed", "Failed", "Stopped")
WAITS = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
TRUST = '{"Version": "2012-10-17", "Statement": []}'


class Answers:
    """What clients are answered: which operations, and what their answers lack."""

    def __init__(self, platform: LocalSageMaker) -> None:
        self._platform = platform
        self.seen: set[tuple[str, str]] = set()
        self.lacking: set[str] = set()

    def client(self, service: str) -> Any:
        client: Any = self._platform.boto_session.client(service)
        client.meta.events.register("after-call", self._check)
        return client

    def _check(self, model: Any, parsed: dict[str, Any], **_: Any) -> None:
        if "Error" in parsed:
            return
        self.seen.add((model.service_model.signing_name, model.name))
        shape = model.output_shape
        found = (
            violations(shape, {name: parsed[name] for name in parsed if name != "ResponseMetadata"}) if shape else ()
        )
        self.lacking |= {
            f"{model.name}: {dotted((*each.path, each.value))}" for each in found if each.rule == "required"
        }


@pytest.mark.slow
def test_every_answer_has_the_members_that_the_model_requires(platform: LocalSageMaker) -> None:
    answers = Answers(platform)
    client = answers.client("sagemaker")
    train(client, platform)
    tune(client, platform)
    process(client, platform)
    keep_records(client, platform)
    experiment(client, answers.client("sagemaker-metrics"))
    logs_and_metrics(answers)
    offered = {(offer.service, operation) for offer in OFFERS for operation in offer.operations}
    assert offered - answers.seen == set()
    # AWS gives a version of a group no name of its own (as its developer guide shows), whatever the model says.
    assert answers.lacking == {"DescribeModelPackage: ModelPackageName"}


def train(client: Any, platform: LocalSageMaker) -> None:
    for name, script in (("waits", WAITS), ("fails", "exit 3"), ("ends", "true")):
        client.create_training_job(**job_request(platform, name, script))
        client.describe_training_job(TrainingJobName=name)
    client.update_training_job(TrainingJobName="waits", RemoteDebugConfig={"EnableRemoteDebug": False})
    client.stop_training_job(TrainingJobName="waits")
    for name in ("waits", "fails", "ends"):
        await_that(lambda: client.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] in ENDED)  # noqa: B023
    client.list_training_jobs()
    client.search(Resource="TrainingJob")
    arn = client.describe_training_job(TrainingJobName="ends")["TrainingJobArn"]
    client.add_tags(ResourceArn=arn, Tags=[{"Key": "a", "Value": "b"}])
    client.list_tags(ResourceArn=arn)
    client.delete_tags(ResourceArn=arn, TagKeys=["a"])
    client.delete_training_job(TrainingJobName="ends")


def tune(client: Any, platform: LocalSageMaker) -> None:
    job = job_request(platform, "tuned", WAITS)
    specification = {**job["AlgorithmSpecification"], "MetricDefinitions": [{"Name": "loss", "Regex": "loss=(.*)"}]}
    for member in ("ContainerEntrypoint", "ContainerArguments"):
        specification.pop(member, None)
    definition = {name: value for name, value in job.items() if name != "TrainingJobName"}
    client.create_hyper_parameter_tuning_job(
        HyperParameterTuningJobName="search",
        HyperParameterTuningJobConfig={
            "Strategy": "Random",
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ResourceLimits": {"MaxNumberOfTrainingJobs": 1, "MaxParallelTrainingJobs": 1},
            "ParameterRanges": {"CategoricalParameterRanges": [{"Name": "way", "Values": ["a", "b"]}]},
        },
        TrainingJobDefinition={**definition, "AlgorithmSpecification": specification},
    )
    name = {"HyperParameterTuningJobName": "search"}
    client.describe_hyper_parameter_tuning_job(**name)
    await_that(lambda: client.list_training_jobs_for_hyper_parameter_tuning_job(**name)["TrainingJobSummaries"])
    client.stop_hyper_parameter_tuning_job(**name)
    await_that(lambda: client.describe_hyper_parameter_tuning_job(**name)["HyperParameterTuningJobStatus"] in ENDED)
    client.list_training_jobs_for_hyper_parameter_tuning_job(**name)
    client.list_hyper_parameter_tuning_jobs()
    client.delete_hyper_parameter_tuning_job(**name)


def process(client: Any, platform: LocalSageMaker) -> None:
    client.create_processing_job(
        ProcessingJobName="process",
        ProcessingResources={"ClusterConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}},
        AppSpecification={"ImageUri": "an-image", "ContainerEntrypoint": ["sh", "-c", WAITS]},
        RoleArn=platform.role,
    )
    name = {"ProcessingJobName": "process"}
    client.describe_processing_job(**name)
    client.list_processing_jobs()
    client.stop_processing_job(**name)
    await_that(lambda: client.describe_processing_job(**name)["ProcessingJobStatus"] in ENDED)
    client.list_processing_jobs()
    client.delete_processing_job(**name)


def keep_records(client: Any, platform: LocalSageMaker) -> None:
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/image:1"
    client.create_model(ModelName="model", ExecutionRoleArn=platform.role, PrimaryContainer={"Image": image})
    client.describe_model(ModelName="model")
    client.list_models()
    client.delete_model(ModelName="model")
    client.create_model_package_group(ModelPackageGroupName="group")
    client.describe_model_package_group(ModelPackageGroupName="group")
    client.list_model_package_groups()
    inference = {
        "Containers": [{"Image": image, "ModelDataUrl": "s3://bucket/model.tar.gz"}],
        "SupportedContentTypes": ["text/csv"],
        "SupportedResponseMIMETypes": ["text/csv"],
    }
    arn = client.create_model_package(ModelPackageGroupName="group", InferenceSpecification=inference)[
        "ModelPackageArn"
    ]
    client.describe_model_package(ModelPackageName=arn)
    client.list_model_packages(ModelPackageGroupName="group")
    client.update_model_package(ModelPackageArn=arn, ModelApprovalStatus="Approved")
    client.create_model_card(ModelCardName="card", Content="{}", ModelCardStatus="Draft")
    client.describe_model_card(ModelCardName="card")
    client.list_model_cards()
    client.update_model_card(ModelCardName="card", ModelCardStatus="Approved")
    client.list_model_card_versions(ModelCardName="card")
    client.delete_model_card(ModelCardName="card")


def experiment(client: Any, metrics: Any) -> None:
    client.create_experiment(ExperimentName="experiment")
    client.create_trial(TrialName="trial", ExperimentName="experiment")
    client.create_trial_component(TrialComponentName="component")
    association = {"TrialComponentName": "component", "TrialName": "trial"}
    client.associate_trial_component(**association)
    value = {"MetricName": "loss", "Timestamp": datetime.now(timezone.utc), "Value": 1.0}
    metrics.batch_put_metrics(TrialComponentName="component", MetricData=[value])
    for kind, name in (
        ("experiment", "ExperimentName"),
        ("trial", "TrialName"),
        ("trial_component", "TrialComponentName"),
    ):
        of_it = {name: kind.rpartition("_")[2]}
        getattr(client, f"update_{kind}")(**of_it, DisplayName="shown")
        getattr(client, f"describe_{kind}")(**of_it)
        getattr(client, f"list_{kind}s")()
    for resource in ("Experiment", "ExperimentTrial", "ExperimentTrialComponent"):
        client.search(Resource=resource)
    client.disassociate_trial_component(**association)
    client.delete_trial_component(TrialComponentName="component")
    client.delete_trial(TrialName="trial")
    client.delete_experiment(ExperimentName="experiment")


def logs_and_metrics(answers: Answers) -> None:
    logs, cloudwatch = answers.client("logs"), answers.client("cloudwatch")
    stream = {"logGroupName": "group", "logStreamName": "stream"}
    now = datetime.now(timezone.utc)
    logs.create_log_group(logGroupName="group")
    logs.create_log_stream(**stream)
    logs.put_log_events(**stream, logEvents=[{"timestamp": int(now.timestamp() * 1000), "message": "a"}])
    logs.describe_log_groups()
    logs.describe_log_streams(logGroupName="group")
    logs.get_log_events(**stream)
    logs.filter_log_events(logGroupName="group")
    logs.delete_log_stream(**stream)
    logs.delete_log_group(logGroupName="group")
    cloudwatch.put_metric_data(Namespace="mine", MetricData=[{"MetricName": "loss", "Value": 1.0}])
    of_it = {"Namespace": "mine", "MetricName": "loss"}
    span = {"StartTime": now - timedelta(hours=1), "EndTime": now + timedelta(hours=1)}
    query = {"Id": "a", "MetricStat": {"Metric": of_it, "Period": 60, "Stat": "Average"}}
    cloudwatch.get_metric_data(MetricDataQueries=[query], **span)
    cloudwatch.get_metric_statistics(**of_it, Period=60, Statistics=["Average"], **span)
    cloudwatch.list_metrics()
    iam = answers.client("iam")
    iam.create_role(RoleName="made", AssumeRolePolicyDocument=TRUST)
    iam.get_role(RoleName="made")
    iam.list_roles()
    iam.delete_role(RoleName="made")
    answers.client("sts").get_caller_identity()


def test_an_unfinished_upload_is_as_old_as_it_is(platform: LocalSageMaker) -> None:
    """Each process that saves to S3 aborts the uploads of earlier processes, by their age."""
    s3, bucket = platform.boto_session.client("s3"), platform.default_bucket
    began = datetime.now(timezone.utc) - timedelta(seconds=2)
    uploads = [s3.create_multipart_upload(Bucket=bucket, Key=f"a/{number}")["UploadId"] for number in range(2)]
    listed = s3.list_multipart_uploads(Bucket=bucket, Prefix="a/")["Uploads"]
    assert sorted(each["UploadId"] for each in listed) == sorted(uploads)
    assert all(began < each["Initiated"] <= datetime.now(timezone.utc) for each in listed)
    s3.abort_multipart_upload(Bucket=bucket, Key="a/0", UploadId=uploads[0])
    assert len(s3.list_multipart_uploads(Bucket=bucket)["Uploads"]) == 1
