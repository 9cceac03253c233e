"""What TensorBoard and the Debugger write is on S3 while the job runs, and all of it at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.estimators.local.engine.whole_jobs import SPOT, TWO_HOSTS, Lines, await_line

FilesIn = Callable[[str, str], dict[str, bytes]]

WRITES_TO_THE_LAST = """
    import json, signal, sys, time
    from pathlib import Path

    config = Path("/opt/ml/input/config")
    host = json.loads((config / "resourceconfig.json").read_text())["current_host"]
    folders = [
        Path(json.loads((config / f"{name}.json").read_text())["LocalPath"])
        for name in ("tensorboardoutputconfig", "debughookconfig")
    ]
    def write(what):
        for folder in folders:
            (folder / f"{host}-{what}").write_text(what)
    def end(*_):
        write("last")
        sys.exit()
    signal.signal(signal.SIGTERM, end)
    write("first")
    print("up", flush=True)
    while True: time.sleep(1)
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_both_are_copied_as_they_are_written_and_over_the_attempts_of_a_job(
    client: Any, lines: Lines, files_in: FilesIn
) -> None:
    name = client.submit(
        WRITES_TO_THE_LAST,
        **SPOT,
        TensorBoardOutputConfig={"S3OutputPath": f"s3://{client.bucket}/boards/"},
        DebugHookConfig={"S3OutputPath": f"s3://{client.bucket}/tensors", "LocalPath": "/opt/ml/tensors"},
        ResourceConfig=TWO_HOSTS,
    )
    places = f"boards/{name}/tensorboard-output/", f"tensors/{name}/debug-output/"
    await_line(lines, name, "up", "algo-1", "algo-2")
    for place in places:
        until(lambda: files_in(client.bucket, place) == {f"algo-{host}-first": b"first" for host in (1, 2)})  # noqa: B023
    client.engine.interrupt(name)
    client.wait(name, lambda job: client.path_of(job).count("Training") == 2)
    for place in places:
        assert len(files_in(client.bucket, place)) == 4
    # A stop may come in the middle of a write: the script has ended that once it says so again.
    until(lambda: all(lines(name, f"algo-{host}").count("up") == 2 for host in (1, 2)))
    client.stop(name)
    assert client.wait(name)["TrainingJobStatus"] == "Stopped"
    for place in places:
        assert files_in(client.bucket, place) == {
            f"algo-{host}-{what}": what.encode() for host in (1, 2) for what in ("first", "last")
        }
    assert not any("Recorded alone" in line for line in lines(name))


def test_a_bucket_that_is_not_there_fails_the_job_before_it_trains(client: Any) -> None:
    job = client.run("", TensorBoardOutputConfig={"S3OutputPath": "s3://no-such-bucket-anywhere/x"})
    assert "Training" not in client.path_of(job)
    assert job["FailureReason"].startswith("ClientError: TensorBoard output: s3://no-such-bucket-anywhere/x")
