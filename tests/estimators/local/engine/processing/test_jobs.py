"""Processing jobs from their request to their end, on hosts that are processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators.local.engine import ApiError
from tests.estimators.local.engine.processing.conftest import Client

FilesIn = Callable[[str, str], dict[str, bytes]]
Said = Callable[[str], list[str]]
UNTIL_STOPPED = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    while True: time.sleep(0.1)
"""
IN, OUT = "/opt/ml/processing/in", "/opt/ml/processing/out"


def test_two_hosts_get_their_shares_and_all_they_write_is_uploaded(
    processing: Client, s3: Any, bucket: str, files_in: FilesIn, said: Said
) -> None:
    for name in ("a", "b", "c"):
        s3.put_object(Bucket=bucket, Key=f"in/{name}", Body=name.encode())
    s3.put_object(Bucket=bucket, Key="list", Body=json.dumps([{"prefix": f"s3://{bucket}/in/"}, "b"]).encode())
    job = processing.run(
        """
        import json, os
        from pathlib import Path

        config = json.loads(Path("/opt/ml/config/resourceconfig.json").read_text())
        host = config["current_host"]
        shares = sorted(path.name for path in Path("/opt/ml/processing/in").iterdir())
        listed = [path.name for path in Path("/opt/ml/processing/listed").iterdir()]
        out = Path("/opt/ml/processing/out")
        (out / f"{host}.json").write_text(json.dumps([config, shares, listed, os.environ["MODE"]]))
        (out / "link").symlink_to(f"{host}.json")
        Path("/opt/ml/output/message").write_text(f"{host} is done; ")
        print("a line")
        """,
        hosts=2,
        Environment={"MODE": "fast"},
        ProcessingInputs=[
            processing.source("in/", IN, S3DataDistributionType="ShardedByS3Key"),
            processing.source("list", "/opt/ml/processing/listed", S3DataType="ManifestFile"),
        ],
        ProcessingOutputConfig={"Outputs": [processing.target("out", OUT)]},
        NetworkConfig={"EnableNetworkIsolation": True, "EnableInterContainerTrafficEncryption": True},
    )
    assert job["ProcessingJobStatus"] == "Completed", job
    assert job["ExitMessage"] == "algo-1 is done; algo-2 is done; "
    assert job["ProcessingStartTime"] <= job["ProcessingEndTime"]
    written = {name: json.loads(content) for name, content in files_in(bucket, "out/").items()}
    config, *_ = written["algo-2.json"]
    assert config == {
        "current_host": "algo-2",
        "current_instance_type": "ml.m5.large",
        "hosts": ["algo-1", "algo-2"],
        "network_interface_name": "lo",
    }
    assert {name: rest for name, (_, *rest) in written.items()} == {
        "algo-1.json": [["a", "c"], ["b"], "fast"],
        "algo-2.json": [["b"], ["b"], "fast"],
    }
    lines = said(job["ProcessingJobName"])
    assert lines.count("a line") == 2
    assert lines.count(f"[platform] {OUT}/link is not uploaded: it is a symbolic link, which is not followed") == 2
    assert [line for line in lines if "not done here" in line] == [
        "[platform] Recorded alone, and not done here: NetworkConfig.EnableInterContainerTrafficEncryption",
        "[platform] NetworkConfig.EnableNetworkIsolation is not done here: hosts that are processes share a network",
    ]


def test_the_program_finds_its_request_as_aws_writes_it(
    processing: Client, s3: Any, bucket: str, files_in: FilesIn
) -> None:
    s3.put_object(Bucket=bucket, Key="in/a", Body=b"a")
    given, target = processing.source("in/", IN), processing.target("out", OUT)
    job = processing.run(
        "import shutil; shutil.copy('/opt/ml/config/processingjobconfig.json', '/opt/ml/processing/out')",
        ProcessingInputs=[given, {"InputName": "own", "AppManaged": True}],
        ProcessingOutputConfig={"Outputs": [target]},
    )
    request = processing.request("")
    assert json.loads(files_in(bucket, "out/")["processingjobconfig.json"]) == {
        "ProcessingJobArn": job["ProcessingJobArn"],
        "ProcessingJobName": job["ProcessingJobName"],
        "AppSpecification": {**job["AppSpecification"], "ContainerArguments": None},
        "Environment": {},
        "ProcessingInputs": [
            {
                "InputName": "in",
                "AppManaged": False,
                "S3Input": {
                    **given["S3Input"],
                    "S3InputMode": "File",
                    "S3DataDistributionType": "FullyReplicated",
                    "S3CompressionType": "None",
                    "S3DownloadMode": "StartOfJob",
                },
            },
            {"InputName": "own", "AppManaged": True},
        ],
        "ProcessingOutputConfig": {"Outputs": [{**target, "AppManaged": False}], "KmsKeyId": None},
        "ProcessingResources": {
            "ClusterConfig": {**request["ProcessingResources"]["ClusterConfig"], "VolumeKmsKeyId": None}
        },
        "RoleArn": request["RoleArn"],
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
    }


def test_a_failed_job_gives_its_message_and_what_was_uploaded_meanwhile_alone(
    processing: Client, bucket: str, files_in: FilesIn, said: Said
) -> None:
    job = processing.run(
        """
        import sys
        from pathlib import Path

        for name in ("end", "meanwhile"):
            Path("/opt/ml/processing", name, "half").write_text("half")
        Path("/opt/ml/output/message").write_text("the columns do not match")
        sys.exit(3)
        """,
        ProcessingOutputConfig={
            "Outputs": [
                processing.target("end", "/opt/ml/processing/end"),
                processing.target("meanwhile", "/opt/ml/processing/meanwhile", "Continuous"),
            ]
        },
    )
    assert job["ProcessingJobStatus"] == "Failed"
    assert job["FailureReason"] == "AlgorithmError: the columns do not match, exit code: 3"
    assert job["ExitMessage"] == "the columns do not match"
    assert files_in(bucket, "end/") == {}
    assert files_in(bucket, "meanwhile/") == {"half": b"half"}
    assert (
        "[platform] /opt/ml/processing/end is not uploaded: the job failed, and its S3UploadMode is EndOfJob"
        in said(job["ProcessingJobName"])
    )


def test_a_continuous_output_is_there_while_the_job_runs_and_a_stop_ends_it(
    processing: Client, bucket: str, files_in: FilesIn
) -> None:
    name = processing.submit(
        """
        import signal, sys, time
        from pathlib import Path

        def stop(*_):
            Path("/opt/ml/processing/out/last").write_text("saved")
            sys.exit(1)

        signal.signal(signal.SIGTERM, stop)
        Path("/opt/ml/processing/out/first").write_text("early")
        while True: time.sleep(0.1)
        """,
        ProcessingOutputConfig={"Outputs": [processing.target("out", OUT, "Continuous")]},
    )
    late = threading.Event()
    while files_in(bucket, "out/") != {"first": b"early"}:
        assert processing.describe(name)["ProcessingJobStatus"] == "InProgress"
        late.wait(0.02)
    with pytest.raises(ApiError, match="has not ended; stop it before it is deleted"):
        processing.call("DeleteProcessingJob", ProcessingJobName=name)
    processing.call("StopProcessingJob", ProcessingJobName=name)
    assert processing.wait(name)["ProcessingJobStatus"] == "Stopped"
    assert files_in(bucket, "out/") == {"first": b"early", "last": b"saved"}
    with pytest.raises(ApiError, match="because the processing job is in status Stopped"):
        processing.call("StopProcessingJob", ProcessingJobName=name)
    processing.call("DeleteProcessingJob", ProcessingJobName=name)
    with pytest.raises(ApiError, match=f"there is no processing job {name}"):
        processing.describe(name)


def test_a_message_that_is_no_text_fails_the_job_and_a_long_one_is_cut(processing: Client) -> None:
    write = "from pathlib import Path; Path('/opt/ml/output/message').write_bytes({})"
    job = processing.run(write.format(r"b'\xff'"))
    assert job["ProcessingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith("ClientError: /opt/ml/output/message of algo-1 is not UTF-8")
    job = processing.run(write.format("'üa'.encode() * 1000"))  # 1024 bytes end in the middle of a character
    assert (job["ProcessingJobStatus"], job["ExitMessage"]) == ("Completed", "üa" * 341)


def test_time_limits_names_lists_and_tags_are_those_of_its_own_kind(processing: Client) -> None:
    request = processing.request(UNTIL_STOPPED, StoppingCondition={"MaxRuntimeInSeconds": 1})
    name = request["ProcessingJobName"]
    arn = processing.call("CreateProcessingJob", **request)["ProcessingJobArn"]
    with pytest.raises(ApiError, match="Processing job names must be unique"):
        processing.call("CreateProcessingJob", **request)
    processing.call(
        "CreateTrainingJob",
        TrainingJobName=name,
        AlgorithmSpecification={
            "TrainingImage": "image",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["true"],
        },
        RoleArn=request["RoleArn"],
        OutputDataConfig={"S3OutputPath": f"s3://{processing.bucket}/model"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
    )
    processing.call("AddTags", ResourceArn=arn, Tags=[{"Key": "team", "Value": "data"}])
    assert processing.wait(name)["ProcessingJobStatus"] == "Stopped"
    assert processing.call("ListTags", ResourceArn=arn) == {"Tags": [{"Key": "team", "Value": "data"}]}
    training = arn.replace(":processing-job/", ":training-job/")
    assert processing.call("ListTags", ResourceArn=training) == {"Tags": []}
    listed = processing.call("ListProcessingJobs", StatusEquals="Stopped", NameContains=name)
    assert [job["ProcessingJobArn"] for job in listed["ProcessingJobSummaries"]] == [arn]


def test_a_program_that_installs_finds_an_environment_of_its_own(processing: Client, tmp_path: Path) -> None:
    request = processing.request("")
    script = (
        "python -c 'import sys, packaging, pip; print(sys.prefix)' > $OUT && command -v pip >> $OUT && pip --version"
    )
    request["AppSpecification"]["ContainerEntrypoint"] = ["sh", "-c", script]
    processing.call("CreateProcessingJob", **request, Environment={"OUT": str(tmp_path / "found")})
    assert processing.wait(request["ProcessingJobName"])["ProcessingJobStatus"] == "Completed"
    assert (tmp_path / "found").read_text().split() == ["/opt/ml/venv", "/opt/ml/venv/bin/pip"]
