"""Whole jobs, with real processes, whose data come while they run."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators.local.engine.fast_file import mount
from estimators.local.executors import ProcessExecutor
from tests.estimators.local.processes import processes_with

Lines = Callable[..., list[str]]

LARGE = random.Random(0).randbytes(11 << 20)  # several blocks, whatever they are
TWO_HOSTS = {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1}
SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 50, "MaxWaitTimeInSeconds": 100},
}
BLOCKED = """
    import signal, time
    signal.signal(signal.SIGTERM, lambda *_: exit(3))
    pipe = open("/opt/ml/input/data/training_0", "rb", buffering=0)
    pipe.read(1)
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def channel(s3: Any, bucket: str) -> Callable[..., list[dict[str, Any]]]:
    """The members of a channel over the given objects."""

    def make(mode: str = "Pipe", /, *, objects: dict[str, bytes], **members: Any) -> list[dict[str, Any]]:
        for name, body in objects.items():
            s3.put_object(Bucket=bucket, Key=f"data/{name}", Body=body)
        source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{bucket}/data/"}
        return [
            {"ChannelName": "training", "InputMode": mode, "DataSource": {"S3DataSource": source | members}},
        ]

    return make


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    yield
    deadline = time.monotonic() + 5
    while left := [
        thread.name for thread in threading.enumerate() if thread.name.startswith(("pipe ", "fast file algo"))
    ]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_program_reads_epoch_after_epoch_from_its_pipes(client: Any, channel: Any, lines: Lines) -> None:
    job = client.run(
        """
        import json, os
        print(sorted(os.listdir("/opt/ml/input/data")))
        print(json.load(open("/opt/ml/input/config/inputdataconfig.json"))["training"]["TrainingInputMode"])
        for epoch in range(3):
            print(open(f"/opt/ml/input/data/training_{epoch}").read())
        """,
        InputDataConfig=channel(objects={"a": b"one ", "b": b"two"}),
    )
    assert job["TrainingJobStatus"] == "Completed", job
    assert lines(job["TrainingJobName"]) == ["['training_0']", "Pipe"] + ["one two"] * 3


def test_pipes_need_no_namespaces(client_of: Any, start_engine: Any, channel: Any, lines: Lines) -> None:
    client = client_of(start_engine(executor=ProcessExecutor(isolated=False)))
    job = client.run(
        "import os; print(open(os.environ['SAGEMAKER_BASE_DIR'] + '/input/data/training_0').read())",
        InputDataConfig=channel(objects={"a": b"content"}),
    )
    assert lines(job["TrainingJobName"]) == ["content"]


def test_hosts_have_pipes_of_their_own_with_their_share_of_the_objects(client: Any, channel: Any, lines: Lines) -> None:
    objects = {str(number): bytes([65 + number]) for number in range(6)}
    job = client.run(
        "print(open('/opt/ml/input/data/training_0').read())",
        InputDataConfig=channel(objects=objects, S3DataDistributionType="ShardedByS3Key"),
        ResourceConfig=TWO_HOSTS,
    )
    shares = [lines(job["TrainingJobName"], host) for host in ("algo-1", "algo-2")]
    assert shares == [["ACE"], ["BDF"]]


def test_a_job_that_never_opens_its_pipes_completes(client: Any, channel: Any) -> None:
    assert client.run("", InputDataConfig=channel(objects={"a": LARGE}))["TrainingJobStatus"] == "Completed"


def test_a_job_that_ends_in_mid_epoch_completes(client: Any, channel: Any) -> None:
    program = "open('/opt/ml/input/data/training_0', 'rb', buffering=0).read(5)"
    assert client.run(program, InputDataConfig=channel(objects={"a": LARGE}))["TrainingJobStatus"] == "Completed"


def test_a_stop_ends_a_job_whose_pipe_is_full(client: Any, channel: Any, lines: Lines) -> None:
    name = client.submit(BLOCKED, InputDataConfig=channel(objects={"a": LARGE}))
    await_line(lines, name, "up")
    client.stop(name)
    assert client.wait(name)["TrainingJobStatus"] == "Stopped"


def test_an_interrupted_job_begins_again_with_the_first_pipe(client: Any, channel: Any, lines: Lines) -> None:
    program = """
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: exit(3))
        assert sorted(os.listdir("/opt/ml/input/data")) == ["training_0"]
        print(len(open("/opt/ml/input/data/training_0", "rb").read()), flush=True)
        if not os.path.exists("/opt/ml/checkpoints/been"):
            open("/opt/ml/checkpoints/been", "w").close()
            print("up", flush=True)
            time.sleep(60)
    """
    checkpoints = {"S3Uri": f"s3://{client.bucket}/checkpoints"}
    request = client.request(program, InputDataConfig=channel(objects={"a": LARGE}), **SPOT)
    name = client.create(request | {"CheckpointConfig": checkpoints})
    await_line(lines, name, "up")
    client.engine.interrupt(name)
    assert client.wait(name)["TrainingJobStatus"] == "Completed"
    assert lines(name).count(str(len(LARGE))) == 2


def test_data_that_can_not_be_sent_fail_the_job_with_the_reason(
    client: Any, channel: Any, s3: Any, lines: Lines
) -> None:
    program = """
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: exit(3))
        pipe = open("/opt/ml/input/data/training_0", "rb", buffering=0)
        pipe.read(1)
        print("up", flush=True)
        while pipe.read(1 << 16): time.sleep(0.01)
        print("the end")
    """
    name = client.submit(program, InputDataConfig=channel(objects={"a": LARGE, "b": b"gone"}))
    await_line(lines, name, "up")
    s3.delete_object(Bucket=client.bucket, Key="data/b")
    job = client.wait(name)
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"] == (
        f'ClientError: Data can not be sent: channel "training": s3://{client.bucket}/data/b: there is no such object'
    )
    assert "the end" not in lines(name)


def test_a_channel_without_objects_fails_before_anything_runs(client: Any, channel: Any, lines: Lines) -> None:
    job = client.run("print('up')", InputDataConfig=channel(objects={}))
    assert job["TrainingJobStatus"] == "Failed"
    assert "no S3 objects found" in job["FailureReason"]
    assert not lines(job["TrainingJobName"])


@pytest.mark.fuse
def test_a_fastfile_channel_is_a_read_only_directory_of_the_objects(client: Any, channel: Any, lines: Lines) -> None:
    job = client.run(
        """
        import hashlib, os
        root = "/opt/ml/input/data/training"
        print(sorted((os.path.relpath(at, root), sorted(files)) for at, _, files in os.walk(root)))
        print(open(root + "/a").read(), os.path.getsize(root + "/sub/large"), open(root + "/empty").read() == "")
        for chunk in (1 << 20, 1000, 3 << 20):
            with open(root + "/sub/large", "rb", buffering=0) as file:
                print(hashlib.md5(b"".join(iter(lambda: file.read(chunk), b""))).hexdigest())
        with open(root + "/sub/large", "rb") as file:
            file.seek(5_000_000)
            print(file.read(3).hex())
        for attempt in (lambda: open(root + "/b", "w"), lambda: os.unlink(root + "/a"), lambda: open(root + "/no")):
            try: attempt()
            except OSError as error: print(error.strerror)
        """,
        InputDataConfig=channel("FastFile", objects={"a": b"first", "sub/large": LARGE, "empty": b""}),
    )
    assert job["TrainingJobStatus"] == "Completed", job
    assert lines(job["TrainingJobName"]) == [
        "[('.', ['a', 'empty']), ('sub', ['large'])]",
        f"first {len(LARGE)} True",
        *[hashlib.md5(LARGE).hexdigest()] * 3,
        LARGE[5_000_000:5_000_003].hex(),
        "Read-only file system",
        "Read-only file system",
        "No such file or directory",
    ]


@pytest.mark.fuse
def test_a_program_may_be_looked_for_in_a_fastfile_channel(client: Any, channel: Any, lines: Lines) -> None:
    request = client.request(InputDataConfig=channel("FastFile", objects={"run.sh": b"#!/bin/sh\necho ran\n"}))
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = ["sh", "-c", "echo ran"]
    request["Environment"] = {"PATH": f"/opt/ml/input/data/training:{os.environ['PATH']}"}
    job = client.wait(client.create(request))
    assert job["TrainingJobStatus"] == "Completed", job
    assert lines(job["TrainingJobName"]) == ["ran"]


@pytest.mark.fuse
def test_a_program_that_lies_in_a_fastfile_channel_may_not_be_executed_as_in_file_mode(
    client: Any, channel: Any
) -> None:
    request = client.request(InputDataConfig=channel("FastFile", objects={"run.sh": b"#!/bin/sh\necho ran\n"}))
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = ["/opt/ml/input/data/training/run.sh"]
    job = client.wait(client.create(request))
    assert job["TrainingJobStatus"] == "Failed"
    assert "/opt/ml/input/data/training/run.sh could not be started: " in job["FailureReason"]
    assert job["FailureReason"].endswith("Permission denied")


@pytest.mark.fuse
def test_mounts_that_can_not_be_served_fail_the_job_and_nothing_runs(
    client: Any, channel: Any, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any) -> None:
        raise RuntimeError("no more threads")

    monkeypatch.setattr(mount.Mount, "start", broken)
    job = client.run("print('up')", InputDataConfig=channel("FastFile", objects={"a": b"first"}))
    assert job["FailureReason"].startswith("InternalServerError: RuntimeError: no more threads")
    assert not lines(job["TrainingJobName"])
    assert "/dev/fuse" not in [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]


@pytest.mark.fuse
def test_nothing_of_a_fastfile_channel_is_copied_to_disk(client: Any, channel: Any, lines: Lines) -> None:
    program = """
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: exit(3))
        open("/opt/ml/input/data/training/a", "rb").read()
        print("up", flush=True)
        time.sleep(60)
    """
    name = client.submit(program, InputDataConfig=channel("FastFile", objects={"a": LARGE}))
    await_line(lines, name, "up")
    directory = client.engine._platform.directory / name
    assert list((directory / "algo-1" / "input" / "data" / "training").iterdir()) == []
    assert sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) < len(LARGE) // 10
    assert name not in Path("/proc/mounts").read_text()
    client.stop(name)
    client.wait(name)


@pytest.mark.fuse
def test_hosts_see_their_share_of_a_fastfile_channel(client: Any, channel: Any, lines: Lines) -> None:
    job = client.run(
        "import os; print(sorted(os.listdir('/opt/ml/input/data/training')))",
        InputDataConfig=channel(
            "FastFile", objects=dict.fromkeys("abcd", b"x"), S3DataDistributionType="ShardedByS3Key"
        ),
        ResourceConfig=TWO_HOSTS,
    )
    shares = [lines(job["TrainingJobName"], host) for host in ("algo-1", "algo-2")]
    assert shares == [["['a', 'c']"], ["['b', 'd']"]]


@pytest.mark.fuse
@pytest.mark.parametrize("fault", ["deleted", "changed"])
def test_an_object_that_can_not_be_read_is_an_error_and_the_log_says_why(
    client: Any, channel: Any, s3: Any, lines: Lines, fault: str
) -> None:
    program = """
        import os, time
        print("up", flush=True)
        while not os.path.exists("/opt/ml/model/go"): time.sleep(0.01)
        open("/opt/ml/input/data/training/a", "rb").read()
    """
    name = client.submit(program, InputDataConfig=channel("FastFile", objects={"a": b"before"}))
    await_line(lines, name, "up")
    if fault == "deleted":
        s3.delete_object(Bucket=client.bucket, Key="data/a")
    else:
        s3.put_object(Bucket=client.bucket, Key="data/a", Body=b"after")
    (client.engine._platform.directory / name / "algo-1" / "model" / "go").touch()
    job = client.wait(name)
    assert job["TrainingJobStatus"] == "Failed"
    assert "Input/output error" in job["FailureReason"]
    why = "there is no such object" if fault == "deleted" else "it was changed while it was read"
    (said,) = {line for line in lines(name) if line.startswith("[platform] ")}
    assert said.endswith(f"data can not be read: s3://{client.bucket}/data/a: {why}" + said.partition(why)[2])
    assert job["FailureReason"].endswith(f"; {said.removeprefix('[platform] ')}, exit code: 1")


@pytest.mark.fuse
@pytest.mark.parametrize("ending", ["stop", "close"])
def test_a_program_that_waits_for_s3_is_ended_all_the_same(
    client_of: Any, start_engine: Any, s3: Any, channel: Any, lines: Lines, ending: str
) -> None:
    blocked, released = threading.Event(), threading.Event()

    class Stalling:
        def __getattr__(self, name: str) -> Any:
            return getattr(s3, name)

        def get_object(self, **request: Any) -> Any:
            blocked.set()
            released.wait(60)
            return s3.get_object(**request)

    client = client_of(start_engine(s3=Stalling(), grace_seconds=0.5))
    program = "open('/opt/ml/input/data/training/a', 'rb').read()"
    name = client.submit(program, InputDataConfig=channel("FastFile", objects={"a": LARGE}))
    assert blocked.wait(20)
    begun = time.monotonic()
    try:
        if ending == "stop":
            client.stop(name)
            assert client.wait(name)["TrainingJobStatus"] == "Stopped"
        else:
            client.engine.close()
        assert time.monotonic() - begun < 15
    finally:
        released.set()


@pytest.mark.fuse
def test_no_mount_and_no_program_that_waits_for_it_outlives_a_platform_that_is_killed(
    endpoint: str, client: Any, channel: Any, tmp_path: Path
) -> None:
    token = f"token-{uuid.uuid4().hex}"
    request = client.request(
        "open('/opt/ml/input/data/training/a', 'rb').read()", InputDataConfig=channel("FastFile", objects={"a": LARGE})
    )
    request["AlgorithmSpecification"]["ContainerArguments"] = [token]
    program = f"""
        import json, time, boto3
        from pathlib import Path
        from estimators.local.engine import Engine
        from estimators.local.executors import ProcessExecutor
        session = boto3.Session(aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1")
        s3, logs = (session.client(name, endpoint_url={endpoint!r}) for name in ("s3", "logs"))
        def stall(**_):
            print("stalled", flush=True)
            time.sleep(60)
        s3.get_object = stall
        engine = Engine(directory=Path({str(tmp_path / "killed")!r}), s3=s3, logs=logs, executor=ProcessExecutor(),
                        container_environment={{}}, account_id="123456789012")
        engine.call("CreateTrainingJob", json.loads({json.dumps(request)!r}), region="us-east-1")
        time.sleep(60)
    """
    holder = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout as said:
        assert said.readline() == b"stalled\n"
        assert processes_with(token)
        holder.kill()
        holder.wait()
    deadline = time.monotonic() + 60
    while processes_with(token):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_where_nothing_can_be_mounted_a_fastfile_channel_is_copied_and_one_line_says_so(
    client_of: Any, start_engine: Any, channel: Any, lines: Lines
) -> None:
    client = client_of(start_engine(executor=ProcessExecutor(isolated=False)))
    job = client.run(
        "import os; print(open(os.environ['SAGEMAKER_BASE_DIR'] + '/input/data/training/a').read())",
        InputDataConfig=channel("FastFile", objects={"a": b"content"}),
    )
    assert lines(job["TrainingJobName"]) == [
        "[platform] Channel training is in FastFile mode, but is copied before the start, as in File mode: nothing "
        "can be mounted here (user namespaces are barred here)",
        "content",
    ]


def await_line(lines: Lines, name: str, line: str) -> None:
    deadline = time.monotonic() + 20
    while line not in lines(name):
        assert time.monotonic() < deadline, lines(name)
        time.sleep(0.02)
