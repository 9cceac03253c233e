"""Processing jobs of the SDK's own processors, unmodified; and what the next platform knows of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from estimators.local import LocalSageMaker
from tests.estimators.local.submitted_jobs import await_that

JOIN = """
import sys
from pathlib import Path

processing = Path("/opt/ml/processing")
texts = [(processing / "input" / name / "text").read_text() for name in sys.argv[1:]]
(processing / "output" / "joined").write_text(" ".join(texts))
print("joined", len(texts))
"""
IMPORTING = """
import sys, packaging
from beside import ANSWER
print("answer", ANSWER, sys.prefix)
"""


class Fast:
    """The time module for the SDK, which looks at a job every 30 s: its clock runs a hundred times as fast."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def time() -> float:
        return time.time() * 100

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(seconds / 100)


@pytest.fixture
def fast_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagemaker.session.time", Fast())


def parameters(platform: LocalSageMaker) -> dict[str, Any]:
    return {
        "image_uri": "an-image",
        "role": platform.role,
        "instance_count": 1,
        "instance_type": "ml.m5.large",
        "sagemaker_session": platform.session,
    }


@pytest.mark.usefixtures("fast_sdk")
@pytest.mark.slow
def test_a_script_processor_joins_two_inputs_and_shows_the_log(
    platform: LocalSageMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sagemaker.processing import ProcessingInput, ProcessingOutput, ScriptProcessor

    s3, bucket = platform.boto_session.client("s3"), platform.default_bucket
    for name, text in (("one", "hello"), ("two", "world")):
        s3.put_object(Bucket=bucket, Key=f"{name}/text", Body=text.encode())
    (tmp_path / "join.py").write_text(JOIN)
    tags = [{"Key": "team", "Value": "data"}]
    processor = ScriptProcessor(command=["python3"], tags=tags, **parameters(platform))
    processor.run(
        str(tmp_path / "join.py"),
        arguments=["one", "two"],
        inputs=[
            ProcessingInput(source=f"s3://{bucket}/{name}", destination=f"/opt/ml/processing/input/{name}")
            for name in ("one", "two")
        ],
        outputs=[ProcessingOutput(source="/opt/ml/processing/output", destination=f"s3://{bucket}/joined")],
        logs=True,
    )
    assert "joined 2" in capsys.readouterr().out
    assert s3.get_object(Bucket=bucket, Key="joined/joined")["Body"].read() == b"hello world"
    job = processor.latest_job.describe()
    assert job["ProcessingJobStatus"] == "Completed"
    client = platform.boto_session.client("sagemaker")
    assert client.list_tags(ResourceArn=job["ProcessingJobArn"])["Tags"] == tags
    name = f"{job['ProcessingJobName']}-aws-processing-job"
    component = client.describe_trial_component(TrialComponentName=name)
    assert component["Source"]["SourceType"] == "SageMakerProcessingJob"
    assert component["Status"]["PrimaryStatus"] == "Completed"
    assert component["EndTime"] == job["ProcessingEndTime"]
    assert {"code", "input-1", "input-2"} == component["InputArtifacts"].keys()
    assert component["OutputArtifacts"]["output-1"]["Value"] == f"s3://{bucket}/joined"


@pytest.mark.usefixtures("fast_sdk")
@pytest.mark.slow
def test_a_pytorch_processor_runs_a_directory_and_raises_when_it_fails(
    platform: LocalSageMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sagemaker.exceptions import UnexpectedStatusException
    from sagemaker.pytorch.processing import PyTorchProcessor

    (tmp_path / "main.py").write_text(IMPORTING)
    (tmp_path / "beside.py").write_text("ANSWER = 42\n")
    processor = PyTorchProcessor(framework_version="2.8", **parameters(platform))
    processor.run("main.py", source_dir=str(tmp_path))
    assert "answer 42 /opt/ml/venv" in capsys.readouterr().out
    (tmp_path / "beside.py").write_text("raise SystemExit('no answer')\n")
    with pytest.raises(UnexpectedStatusException, match=r"Failed\. Reason: AlgorithmError: .*no answer, exit code: 1"):
        processor.run("main.py", source_dir=str(tmp_path))


def request(platform: LocalSageMaker, name: str, script: str) -> dict[str, Any]:
    return {
        "ProcessingJobName": name,
        "ProcessingResources": {
            "ClusterConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}
        },
        "AppSpecification": {"ImageUri": "an-image", "ContainerEntrypoint": ["sh", "-c", script]},
        "RoleArn": platform.role,
    }


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_a_killed_platform_s_jobs_and_logs_are_known_and_a_stopped_platform_stops_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waits = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"

    def messages(platform: LocalSageMaker, name: str) -> list[str]:
        logs, group = platform.boto_session.client("logs"), "/aws/sagemaker/ProcessingJobs"
        try:
            events = logs.filter_log_events(logGroupName=group, logStreamNamePrefix=f"{name}/")["events"]
        except logs.exceptions.ResourceNotFoundException:
            return []
        return [event["message"] for event in events]

    with LocalSageMaker(tmp_path, storage="disk") as platform:
        client = platform.boto_session.client("sagemaker")
        client.create_processing_job(**request(platform, "done", "echo said; echo fine > /opt/ml/output/message"))
        client.create_processing_job(**request(platform, "running", waits))
        await_that(lambda: messages(platform, "running") == ["up"])
        done = await_that(
            lambda: (
                (job := client.describe_processing_job(ProcessingJobName="done"))["ProcessingJobStatus"] == "Completed"
                and job
            )
        )
        os.kill(platform.server_pid, signal.SIGKILL)
        platform.stop()
    with LocalSageMaker(tmp_path, storage="disk") as platform:
        client = platform.boto_session.client("sagemaker")
        known = client.describe_processing_job(ProcessingJobName="done")
        assert {**known, "ResponseMetadata": None} == {**done, "ResponseMetadata": None}
        assert known["ExitMessage"] == "fine\n"
        assert messages(platform, "done") == ["said"]
        broken = client.describe_processing_job(ProcessingJobName="running")
        assert broken["ProcessingJobStatus"] == "Failed"
        assert "The local platform ended while the job ran" in broken["FailureReason"]
        client.create_processing_job(**request(platform, "last", waits))
        await_that(lambda: messages(platform, "last") == ["up"])
    assert "last is Stopped" in caplog.messages
