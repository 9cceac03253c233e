"""A log that is longer than what is kept of it, and a job that can't be followed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from estimators.console import job_watch
from estimators.console.job_watch import Watches
from estimators.console.jobs import JobSource
from estimators.console.server import Console
from estimators.log_reader import LOG_GROUP
from tests.estimators.console.conftest import Client, entered, log, request
from tests.smddp.goodput.test_account import attempt


@pytest.fixture
def source() -> Iterator[JobSource]:
    with mock_aws():
        session = boto3.Session(region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
        source = JobSource(name="AWS", session=session)
        source.sagemaker.create_training_job(**request("job"))
        source.logs.create_log_group(logGroupName=LOG_GROUP)
        yield source


def test_the_first_lines_are_dropped_and_the_others_keep_their_numbers(
    source: JobSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "MOST_CHARACTERS", 20_000)
    log(source.logs, "job", "algo-1", [f"line {number}" for number in range(1, 1001)] + ["x" * 5000])
    watch = Watches(source).of("job")
    watch.look(30)
    window = watch.window(-2, 2)
    assert watch.is_read
    assert window.total + window.dropped == 1001
    assert 800 < window.dropped < 1001
    assert window.lines[0][::3] == (1000, "line 1000")
    assert window.lines[1][3].endswith("x … (1000 more characters)")
    assert watch.hosts()["algo-1"].lines == 1001


def test_the_last_verdicts_of_the_watchdog_are_kept(source: JobSource) -> None:
    verdicts = [
        "03:24:20 WARNING rank 0: slow: rank 1 on algo-2 makes the other rank wait for 92 % of the time. It spends",
        "03:24:50 ERROR rank 0: hang: rank 1 on algo-2 has not moved for 30 s after 5 optimizer steps: train.py:7",
        "03:24:51 ERROR hang: the ranks are in different collectives, number 8 of each",
        "03:24:52 ERROR hang: all ranks have entered barrier (number 8)",
        "03:24:53 ERROR hang: ranks wait for each other in collectives of different groups",
    ]
    others = ["step 10  loss 1.2", "the download is slow: 3 MB/s", "saved step 10", "change: rank 1 left"]
    log(source.logs, "job", "algo-1", [*[f"{verdicts[0]} {number}" for number in range(9)], *others, *verdicts])
    watch = Watches(source).of("job")
    watch.look(30)
    assert watch.verdicts() == verdicts


def test_one_job_is_followed_once_and_the_oldest_is_forgotten(
    source: JobSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "MOST_WATCHED", 2)
    for name in ("b", "c"):
        source.sagemaker.create_training_job(**request(name))
    watches = Watches(source)
    first = watches.of("job")
    assert watches.of("job") is first
    watches.of("b")
    watches.of("c")
    assert first.is_stale
    assert watches.of("job") is not first
    watches.close()
    for thread in threading.enumerate():
        if thread.name.startswith("watch "):  # or it would ask the real AWS once the test is over
            thread.join()


def test_why_a_log_can_not_be_read_is_kept(source: JobSource, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = boto3.Session(region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b").client("logs")
    error = {"Error": {"Code": "AccessDeniedException", "Message": "not for you"}}

    def refuse(**_: object) -> None:
        raise denied.exceptions.ClientError(error, "DescribeLogStreams")

    denied.meta.events.register("before-call.logs.DescribeLogStreams", refuse)
    object.__setattr__(source, "logs", denied)
    watch = Watches(source).of("job")
    deadline = time.monotonic() + 60
    while not watch.failure and time.monotonic() < deadline:
        watch.look(0.1)
    assert "not for you" in watch.failure
    assert watch.description["TrainingJobName"] == "job"


def test_a_defect_while_a_job_is_followed_is_shown_in_place_of_an_endless_wait(
    source: JobSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    watches = Watches(source)
    monkeypatch.setattr(job_watch.Follower, "looks", lambda *_: (1 / 0 for _ in range(1)))
    watch = watches.of("job")
    watch.look(10)
    assert "division by zero" in watch.failure


def test_the_goodput_ledger_beside_the_checkpoints_is_shown(source: JobSource) -> None:
    s3 = source.session.client("s3")
    s3.create_bucket(Bucket="saves")
    for name, uri in (("saving", "s3://saves/run"), ("without", "s3://saves/other"), ("barred", "s3://absent/run")):
        source.sagemaker.create_training_job(**request(name, CheckpointConfig={"S3Uri": uri}))
        log(source.logs, name, "algo-1", ["a line"])
    record = attempt(1e9, step=10, saved=(8,), end="failed")
    s3.put_object(Bucket="saves", Key=f"run/goodput/{record.name}", Body=record.to_json())
    s3.put_object(Bucket="saves", Key=f"run/goodput/{record.name.replace('2001', '2002')}", Body=b"{")
    with Console(source) as console:
        client = entered(console.link)
        page = _read(client, "saving")
        assert re.search(r"Goodput.*42\.4 %", page)
        assert re.search(r"<span>lost</span><b[^>]*>11\.8 %", page)
        assert "Of 17 s in 1 attempt; 2 steps lost." in page
        assert "is damaged, and left out" in page
        for name in ("without", "barred", "job"):
            assert "Goodput" not in _read(client, name)


def _read(client: Client, name: str) -> str:
    """Return a job's page once its log is read."""
    deadline = time.monotonic() + 30
    while "The log is being read" in (page := client.text(f"/jobs/{name}")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return page
