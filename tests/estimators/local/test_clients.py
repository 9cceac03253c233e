"""Clients that never heard of smddp train through the local platform: boto3, the AWS CLI, the SageMaker SDK V2."""

import concurrent.futures
import io
import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from sagemaker.analytics import TrainingJobAnalytics

from tests.estimators.local.submitted_jobs import await_end, messages

AWS = str(Path(sys.executable).with_name("aws"))


def await_training(platform, name: str) -> None:
    client = platform.boto_session.client("sagemaker")
    while client.describe_training_job(TrainingJobName=name)["SecondaryStatus"] != "Training":
        time.sleep(0.05)


def model_files(platform, job: dict) -> dict[str, str]:
    bucket, _, key = job["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://").partition("/")
    body = platform.boto_session.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        members = [member for member in archive if member.isfile()]
        return {Path(member.name).name: archive.extractfile(member).read().decode() for member in members}


@pytest.mark.slow
def test_boto3_runs_jobs_side_by_side(platform, job_request):
    client = platform.boto_session.client("sagemaker")
    names = [f"side-{number}" for number in range(4)]

    def train(name: str) -> dict:
        client.create_training_job(**job_request(name, f"echo I am {name}; echo {name} > /opt/ml/model/who"))
        return await_end(platform, name)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        jobs = dict(zip(names, pool.map(train, names), strict=True))
    for name, job in jobs.items():
        assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
        assert model_files(platform, job) == {"who": f"{name}\n"}
        assert f"I am {name}" in messages(platform, name)
    listed = client.list_training_jobs(NameContains="side-", StatusEquals="Completed")["TrainingJobSummaries"]
    assert {job["TrainingJobName"] for job in listed} == set(names)


@pytest.mark.slow
def test_boto3_is_told_what_is_wrong_with_its_request(platform, job_request):
    client = platform.boto_session.client("sagemaker")
    client.create_training_job(**job_request("twice", "true"))
    with pytest.raises(ClientError) as caught:
        client.create_training_job(**job_request("twice", "true"))
    assert caught.value.response["Error"]["Code"] == "ResourceInUse"
    with pytest.raises(ClientError, match="there is no training job never"):
        client.describe_training_job(TrainingJobName="never")


def test_an_interrupted_spot_job_starts_again(platform, job_request):
    """The second life finds what the first one saved, as on AWS."""
    checkpoints = f"s3://{platform.default_bucket}/spot"
    script = (
        "if [ -e /opt/ml/checkpoints/saved ]; then echo second life; exit 0; fi;"
        "trap 'echo saved > /opt/ml/checkpoints/saved; exit 75' TERM; echo first life; sleep 60 & wait"
    )
    request = job_request("spot", script, EnableManagedSpotTraining=True)
    request["StoppingCondition"] = {"MaxRuntimeInSeconds": 100, "MaxWaitTimeInSeconds": 200}
    request["CheckpointConfig"] = {"S3Uri": checkpoints}
    platform.boto_session.client("sagemaker").create_training_job(**request)
    while "first life" not in messages(platform, "spot"):
        time.sleep(0.05)
    platform.interrupt("spot")
    job = await_end(platform, "spot")
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert "Interrupted" in [transition["Status"] for transition in job["SecondaryStatusTransitions"]]
    assert [line for line in messages(platform, "spot") if "life" in line] == ["first life", "second life"]


@pytest.fixture
def aws(platform):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}

    def run(*arguments: str):
        done = subprocess.run(
            [AWS, *arguments, "--output", "json"],
            env={**clean, **platform.environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "null")

    return run


@pytest.mark.slow
def test_the_aws_cli_creates_describes_lists_waits_and_reads_logs(platform, job_request, aws):
    created = aws("sagemaker", "create-training-job", "--cli-input-json", json.dumps(job_request("cli", "echo hello")))
    assert created["TrainingJobArn"].endswith(":training-job/cli")
    await_end(platform, "cli")
    aws("sagemaker", "wait", "training-job-completed-or-stopped", "--training-job-name", "cli")
    job = aws("sagemaker", "describe-training-job", "--training-job-name", "cli")
    assert job["TrainingJobStatus"] == "Completed"
    listed = aws("sagemaker", "list-training-jobs", "--name-contains", "cli", "--status-equals", "Completed")
    assert [job["TrainingJobName"] for job in listed["TrainingJobSummaries"]] == ["cli"]
    group = ("--log-group-name", "/aws/sagemaker/TrainingJobs")
    streams = aws("logs", "describe-log-streams", *group, "--log-stream-name-prefix", "cli/")["logStreams"]
    events = aws("logs", "get-log-events", *group, "--log-stream-name", streams[0]["logStreamName"])["events"]
    assert "hello" in [event["message"] for event in events]


@pytest.mark.slow
def test_the_aws_cli_stops_a_job_and_copies_files(platform, job_request, aws, tmp_path):
    platform.boto_session.client("sagemaker").create_training_job(
        **job_request("cli-stop", "trap 'exit 0' TERM; sleep 60 & wait")
    )
    await_training(platform, "cli-stop")
    aws("sagemaker", "stop-training-job", "--training-job-name", "cli-stop")
    assert await_end(platform, "cli-stop")["TrainingJobStatus"] == "Stopped"
    (tmp_path / "up").write_bytes(b"x" * 9_000_000)
    uri = f"s3://{platform.default_bucket}/cli/file"
    subprocess.run(
        [AWS, "s3", "cp", "--quiet", str(tmp_path / "up"), uri], env=os.environ | platform.environment, check=True
    )
    subprocess.run(
        [AWS, "s3", "cp", "--quiet", uri, str(tmp_path / "down")], env=os.environ | platform.environment, check=True
    )
    assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()


SUBMIT = """
import sys
from sagemaker.pytorch import PyTorch
from sagemaker.session import Session

bucket = Session().default_bucket()
data = Session().upload_data("numbers.txt", bucket=bucket, key_prefix="numbers")
estimator = PyTorch(
    entry_point="train.py",
    source_dir="source",
    role=sys.argv[1],
    framework_version="2.8.0",
    py_version="py312",
    instance_type="ml.m5.large",
    instance_count=2,
    hyperparameters={"factor": 10},
)
estimator.fit({"training": data}, job_name="vanilla")
print("model:", estimator.model_data)
attached = PyTorch.attach("vanilla")
print("attached:", attached.model_data, attached.hyperparameters()["factor"], attached.instance_count)
"""

TRAIN = """
import argparse, json, os
from pathlib import Path
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--factor", type=int)
parser.add_argument("--training", type=Path, default=os.environ["SM_CHANNEL_TRAINING"])
arguments = parser.parse_args()
hosts = json.loads(os.environ["SM_HOSTS"])
rank = hosts.index(os.environ["SM_CURRENT_HOST"])
os.environ.update(MASTER_ADDR=hosts[0], MASTER_PORT="7777", GLOO_SOCKET_IFNAME=os.environ["SM_NETWORK_INTERFACE_NAME"])
dist.init_process_group("gloo", rank=rank, world_size=len(hosts))
numbers = [int(line) for line in (arguments.training / "numbers.txt").read_text().split()]
total = torch.tensor(float(numbers[rank] * arguments.factor))
dist.all_reduce(total)
print(f"rank {rank} of {len(hosts)}: total={total.item()}")
if rank == 0:
    Path(os.environ["SM_MODEL_DIR"], "total").write_text(str(total.item()))
dist.destroy_process_group()
"""


def test_who_has_a_presigned_url_needs_no_keys_until_it_expires(platform):
    s3 = platform.boto_session.client("s3")
    place = {"Bucket": platform.default_bucket, "Key": "presigned ü"}
    put = urllib.request.Request(s3.generate_presigned_url("put_object", place), data=b"sent", method="PUT")
    assert urllib.request.urlopen(put).status == 200
    url = s3.generate_presigned_url("get_object", place, ExpiresIn=100)
    assert urllib.request.urlopen(url).read() == b"sent"
    for refused in (url.replace("presigned", "other"), url.replace("X-Amz-Expires=100", "X-Amz-Expires=200")):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(refused)


def test_the_sagemaker_sdks_analytics_find_the_values_of_a_jobs_metrics(platform, job_request):
    request = job_request("analysed", "for loss in 4 2 nan 0; do echo loss=$loss; done")
    request["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "loss", "Regex": r"loss=(\S+)"}]
    platform.boto_session.client("sagemaker").create_training_job(**request)
    await_end(platform, "analysed")
    table = TrainingJobAnalytics("analysed", sagemaker_session=platform.session).dataframe()
    # All of one minute: CloudWatch's average of them.
    assert table.to_dict("records") == [{"timestamp": 0.0, "metric_name": "loss", "value": 2.0}]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("port_7777")
def test_the_sagemaker_sdk_trains_a_script_of_two_hosts(platform, tmp_path):
    """Submit script and training script are what one would run on AWS, to the letter."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text(TRAIN)
    (tmp_path / "submit.py").write_text(SUBMIT)
    (tmp_path / "numbers.txt").write_text("1\n2\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "submit.py", platform.role],
        cwd=tmp_path,
        env={**clean, **platform.environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    job = platform.boto_session.client("sagemaker").describe_training_job(TrainingJobName="vanilla")
    assert model_files(platform, job) == {"total": "30.0"}
    assert f"model: {job['ModelArtifacts']['S3ModelArtifacts']}" in done.stdout
    assert f"attached: {job['ModelArtifacts']['S3ModelArtifacts']} 10 2" in done.stdout
    assert "rank 1 of 2: total=30.0" in done.stdout
