"""How fast data come to a training loop: images and bytes a second of each kind of channel.

All kinds read the same images, one epoch each, in a process of its own, one after the other and in another order each
turn. What is on S3 lies in SeaweedFS on this machine, its objects in memory; Pipe is served by the local
platform to real jobs, whose S3 stands behind a gateway. An image is decoded by copying its bytes, so that what is
measured is how they come; each kind but the plain ones gives them in an order that resumes. Below, those that only
read the bytes of the same tar files tell what the server, and each client, can do at all. Peers that are not installed
are left out (`pip install s3torchconnector obstore`).

    python benchmarks/loader.py [--images 3000] [--workers 2] [--repeats 3] [--kinds "S3 stream, tar" ...]
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import boto3
import numpy as np
from loading import kinds
from loading.kinds import IMAGE_BYTES, KINDS
from s3_transfer import server

from estimators.local import LocalSageMaker

BUCKET, PREFIX = "loader", "images"
A_SHARD = 500


def make(directory: Path, images: int) -> None:
    """Write the same images as files, as tar files and as JSON lines."""
    content = np.random.default_rng(0)
    for name in ("files", "tar", "jsonl"):
        (directory / name).mkdir(parents=True)
    for first in range(0, images, A_SHARD):
        with (
            tarfile.open(directory / "tar" / f"{first:08}.tar", "w") as tar,
            (directory / "jsonl" / f"{first:08}.jsonl").open("w") as lines,
        ):
            for number in range(first, min(first + A_SHARD, images)):
                image, label = content.bytes(IMAGE_BYTES), number % 10
                (directory / "files" / f"{number:08}-{label}").write_bytes(image)
                for suffix, part in ("img", image), ("cls", str(label).encode()):
                    member = tarfile.TarInfo(f"{number:08}.{suffix}")
                    member.size = len(part)
                    tar.addfile(member, io.BytesIO(part))
                lines.write(json.dumps({"image": base64.b64encode(image).decode(), "label": label}) + "\n")
    for name in ("tar", "jsonl"):
        from smddp.data.shards import ShardIndex
        from smddp.data.source import open_source

        ShardIndex.of(open_source(directory / name)).write(directory / name)


def upload(s3: Any, bucket: str, directory: Path) -> None:
    paths = [path for path in directory.rglob("*") if path.is_file()]
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(
            lambda path: s3.put_object(
                Bucket=bucket, Key=f"{PREFIX}/{path.relative_to(directory)}", Body=path.read_bytes()
            ),
            paths,
        ):
            pass


def in_process(name: str, directory: Path, workers: int, report: Path, environ: dict[str, str]) -> None:
    arguments = {"kind": name, "directory": directory, "uri": f"s3://{BUCKET}/{PREFIX}", "workers": workers}
    command = [sys.executable, kinds.__file__, f"--report={report}"]
    command += [f"--{key}={value}" for key, value in arguments.items()]
    subprocess.run(command, check=True, env={**os.environ, **environ})


def in_job(sagemaker: LocalSageMaker, name: str, turn: int, workers: int, report: Path) -> None:
    client, prefix = sagemaker.boto_session.client("sagemaker"), f"s3://{sagemaker.default_bucket}"
    format_ = name.rpartition(" ")[2]
    parameters = {
        "sagemaker_program": "kinds.py",
        "sagemaker_submit_directory": f"{prefix}/source.tar.gz",
        "kind": name,
        "workers": workers,
        "report": str(report),
    }
    job = f"{''.join(letter for letter in name if letter.isalnum())}-{turn}"
    client.create_training_job(
        TrainingJobName=job,
        RoleArn=sagemaker.role,
        AlgorithmSpecification={"TrainingImage": "any", "TrainingInputMode": "Pipe"},
        HyperParameters={key: json.dumps(value) for key, value in parameters.items()},
        InputDataConfig=[
            {
                "ChannelName": "training",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": f"{prefix}/{PREFIX}/{format_}/0",
                    }
                },
            }
        ],
        OutputDataConfig={"S3OutputPath": f"{prefix}/output"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 600},
    )
    while (found := client.describe_training_job(TrainingJobName=job))["TrainingJobStatus"] == "InProgress":
        time.sleep(0.1)
    if found["TrainingJobStatus"] != "Completed":
        raise SystemExit(f"{name}: {found.get('FailureReason')}")


def start_jobs(directory: Path) -> Iterator[LocalSageMaker]:
    with LocalSageMaker() as sagemaker:
        s3, bundle = sagemaker.boto_session.client("s3"), io.BytesIO()
        with tarfile.open(fileobj=bundle, mode="w:gz") as archive:
            archive.add(kinds.__file__, "kinds.py")
        s3.put_object(Bucket=sagemaker.default_bucket, Key="source.tar.gz", Body=bundle.getvalue())
        for name in ("tar", "jsonl"):
            for path in (directory / name).iterdir():
                s3.upload_file(str(path), sagemaker.default_bucket, f"{PREFIX}/{name}/{path.name}")
        yield sagemaker


def main(names: list[str], images: int, workers: int, repeats: int, parent: Path) -> None:
    found: dict[str, list[dict[str, float]]] = {}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loader-benchmark-", dir=parent)))
        directory, report = root / "data", root / "report.json"
        make(directory, images)
        environ = stack.enter_context(server(root / "server"))
        os.environ.update(environ)
        s3 = boto3.session.Session().client("s3")
        s3.create_bucket(Bucket=BUCKET)
        upload(s3, BUCKET, directory)
        sagemaker = None
        if any(KINDS[name].piped for name in names):
            platforms = start_jobs(directory)
            stack.callback(lambda: next(platforms, None))
            for variable in environ:
                del os.environ[variable]
            sagemaker = next(platforms)
        for turn in range(repeats):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                if KINDS[name].piped:
                    assert sagemaker is not None
                    in_job(sagemaker, name, turn, workers, report)
                else:
                    in_process(name, directory, workers, report, environ)
                found.setdefault(name, []).append(json.loads(report.read_text()))
                report.unlink()
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    show(names, found, images, workers)


def show(names: list[str], found: dict[str, list[dict[str, float]]], images: int, workers: int) -> None:
    print(
        f"{images} images of {IMAGE_BYTES} bytes, {workers} workers, {date.today()}, {os.cpu_count()} CPUs, "
        f"Python {platform.python_version()}, load {os.getloadavg()[1]:.1f}\n"
    )
    print("| | images/s | MB/s | best | processor s/GB | × plain |\n|---|---|---|---|---|---|")
    plain = found.get(next(iter(KINDS)))
    for name in names:
        turns = found[name]
        rates = [turn["bytes"] / turn["seconds"] for turn in turns]
        count = statistics.median(turn["images"] / turn["seconds"] for turn in turns)
        processor = statistics.median(turn["processor"] / turn["bytes"] for turn in turns) * 1e9
        ratio = ""
        if plain and count:
            ratio = f"{statistics.median(r * p['seconds'] / p['bytes'] for r, p in zip(rates, plain, strict=True)):.2f}"
        print(
            f"| {name} | {f'{count:.0f}' if count else ''} | {statistics.median(rates) / 1e6:.0f} | "
            f"{max(rates) / 1e6:.0f} | {processor:.1f} | {ratio} |"
        )
    for name, kind in KINDS.items():
        if not kind.is_available:
            print(f"\n{name}: {kind.needs} is not installed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))
    available = [name for name, kind in KINDS.items() if kind.is_available]
    parser.add_argument("--kinds", nargs="+", choices=available, default=available, metavar="KIND")
    options = parser.parse_args()
    main(options.kinds, options.images, options.workers, options.repeats, options.directory)
