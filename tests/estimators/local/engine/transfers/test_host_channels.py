"""Whole jobs, with real processes, whose data come while they run."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators.local.executors import ProcessExecutor
from tests.estimators.local.engine.whole_jobs import SPOT, TWO_HOSTS, Lines, await_line

LARGE = random.Random(0).randbytes(11 << 20)  # several blocks, whatever they are
BLOCKED = """
    import signal, time
    signal.signal(signal.SIGTERM, lambda *_: exit(3))
    pipe = open("/opt/ml/input/data/training_0", "rb", buffering=0)
    pipe.read(1)
    print("up", flush=True)
    while True: time.sleep(0.1)
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
    deadline = time.monotonic() + 60
    while left := [thread.name for thread in threading.enumerate() if thread.name.startswith("pipe ")]:
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
    client: Any, channel: Any, s3: Any, lines: Lines, tmp_path: Path
) -> None:
    deleted = tmp_path / "deleted"
    program = f"""
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: exit(3))
        pipe = open("/opt/ml/input/data/training_0", "rb", buffering=0)
        pipe.read(1)
        print("up", flush=True)
        while not os.path.exists({str(deleted)!r}): time.sleep(0.01)
        while pipe.read(1 << 16): pass
        print("the end")
    """
    name = client.submit(program, InputDataConfig=channel(objects={"a": LARGE, "b": b"gone"}))
    await_line(lines, name, "up")
    s3.delete_object(Bucket=client.bucket, Key="data/b")
    deleted.touch()
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


def test_a_fastfile_channel_is_copied_as_in_file_mode_and_each_host_says_so(
    client: Any, channel: Any, lines: Lines
) -> None:
    job = client.run(
        """
        import json, os
        from pathlib import Path
        print(json.load(open("/opt/ml/input/config/inputdataconfig.json"))["training"]["TrainingInputMode"])
        print({path.name: path.read_text() for path in sorted(Path("/opt/ml/input/data/training").iterdir())})
        """,
        InputDataConfig=channel(
            "FastFile", objects={name: name.encode() for name in "abcd"}, S3DataDistributionType="ShardedByS3Key"
        ),
        ResourceConfig=TWO_HOSTS,
    )
    assert job["TrainingJobStatus"] == "Completed", job
    said = [
        "[platform] Channel training is in FastFile mode: here it is copied before the start, as in File mode",
        "File",
    ]
    assert lines(job["TrainingJobName"], "algo-1") == [*said, "{'a': 'a', 'c': 'c'}"]
    assert lines(job["TrainingJobName"], "algo-2") == [*said, "{'b': 'b', 'd': 'd'}"]
