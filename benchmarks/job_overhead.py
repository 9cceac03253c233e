"""What the platform adds to a script: a training job, from create_training_job to Completed, against the bare script.

Both run the same script, which reads a channel and saves a model, in turn, in one run; each one's median counts. The
job is submitted by boto3, with its source in S3, and run by the program that an image runs (``smddp.container``).

    python benchmarks/job_overhead.py [--repeats 7] [--hosts 1]

Target: at most 1 s.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from estimators.local import LocalSageMaker

SCRIPT = """
import os
from pathlib import Path

data = Path(os.environ["SM_CHANNEL_TRAINING"], "data").read_bytes()
Path(os.environ["SM_MODEL_DIR"], "model").write_bytes(data[::-1])
"""
BUCKET_PREFIX = "overhead"


def bare_seconds(directory: Path) -> float:
    environment = {**os.environ, "SM_CHANNEL_TRAINING": str(directory), "SM_MODEL_DIR": str(directory)}
    started = time.perf_counter()
    subprocess.run([sys.executable, str(directory / "train.py")], env=environment, check=True)
    return time.perf_counter() - started


def job_seconds(client: Any, request: dict[str, Any]) -> float:
    started = time.perf_counter()
    client.create_training_job(**request)
    while True:
        job = client.describe_training_job(TrainingJobName=request["TrainingJobName"])
        if job["TrainingJobStatus"] != "InProgress":
            break
        time.sleep(0.01)
    seconds = time.perf_counter() - started
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    return seconds


def upload(platform: LocalSageMaker, directory: Path) -> str:
    """Put the channel and the source bundle into S3; the URI of the prefix."""
    s3 = platform.boto_session.client("s3")
    s3.upload_file(str(directory / "data"), platform.default_bucket, f"{BUCKET_PREFIX}/training/data")
    bundle = io.BytesIO()
    with tarfile.open(fileobj=bundle, mode="w:gz") as archive:
        archive.add(directory / "train.py", "train.py")
    s3.put_object(Bucket=platform.default_bucket, Key=f"{BUCKET_PREFIX}/source.tar.gz", Body=bundle.getvalue())
    return f"s3://{platform.default_bucket}/{BUCKET_PREFIX}"


def job_request(platform: LocalSageMaker, prefix: str, *, hosts: int) -> dict[str, Any]:
    hyperparameters = {"sagemaker_program": "train.py", "sagemaker_submit_directory": f"{prefix}/source.tar.gz"}
    return {
        "RoleArn": platform.role,
        "AlgorithmSpecification": {"TrainingImage": "any", "TrainingInputMode": "File"},
        "HyperParameters": {name: json.dumps(value) for name, value in hyperparameters.items()},
        "InputDataConfig": [
            {
                "ChannelName": "training",
                "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"{prefix}/training"}},
            }
        ],
        "OutputDataConfig": {"S3OutputPath": f"{prefix}/output"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": hosts, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--hosts", type=int, default=1)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        (directory / "train.py").write_text(SCRIPT)
        (directory / "data").write_bytes(os.urandom(1 << 20))
        started = time.perf_counter()
        with LocalSageMaker() as platform:
            start_seconds = time.perf_counter() - started
            client = platform.boto_session.client("sagemaker")
            request = job_request(platform, upload(platform, directory), hosts=arguments.hosts)
            bare, jobs = [], []
            for repeat in range(arguments.repeats):
                bare.append(bare_seconds(directory))
                jobs.append(job_seconds(client, {**request, "TrainingJobName": f"overhead-{repeat}"}))
            stopping = time.perf_counter()
        stop_seconds = time.perf_counter() - stopping
    script, job = statistics.median(bare), statistics.median(jobs)
    print(f"bare script      {script:6.3f} s")
    print(f"training job     {job:6.3f} s (worst {max(jobs):.3f}), {arguments.hosts} host(s)")
    print(f"overhead         {job - script:6.3f} s, ratio {job / script:.1f}; target: at most 1 s")
    print(f"platform         {start_seconds:6.3f} s to start, {stop_seconds:.3f} s to stop")


if __name__ == "__main__":
    main()
