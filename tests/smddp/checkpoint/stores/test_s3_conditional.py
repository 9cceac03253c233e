"""A prefix in S3 that a run has: refused to a second one as long as the first lives, wherever that is."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
import moto
import pytest
from moto.s3.responses import S3Response

from smddp.checkpoint.stores import owner_record as owners
from smddp.checkpoint.stores import s3_conditional
from smddp.checkpoint.stores.owner_record import OWNER_NAME, LocationTakenError, Owner
from smddp.checkpoint.stores.s3 import S3Store
from smddp.checkpoint.stores.s3_conditional import S3Hold

RUN, OTHER = "0123456789ab", "ba9876543210"
HERE = Owner.here(RUN)
ELSEWHERE = replace(Owner.here(OTHER), machine="another", host="elsewhere", pid=1)
KEY = f"runs/7/{OWNER_NAME}"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "PATIENCE_SECONDS", 0.2)
    for name, seconds in ("RENEWAL_SECONDS", 0.05), ("STALE_SECONDS", 0.6), ("_PAUSE", 0.02):
        monkeypatch.setattr(s3_conditional, name, seconds)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of this process's own S3, which answers one request at a time.

    Of several at once moto would meet a condition that was true a moment before, and read an object that is replaced.
    """
    answer, alone = S3Response.key_response, threading.Lock()

    def key_response(response: S3Response, *request: Any) -> Any:
        with alone:
            return answer(response, *request)

    monkeypatch.setattr(S3Response, "key_response", key_response)
    with moto.mock_aws():
        client = boto3.client("s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
        client.create_bucket(Bucket="bucket")
        yield client


@pytest.fixture
def take(s3: Any) -> Callable[[Owner], S3Hold]:
    return lambda owner: S3Store("s3://bucket/runs/7", s3).hold(owner, make=True)


def leave(s3: Any, owner: Owner) -> None:
    """Leave what an owner leaves that is killed."""
    s3.put_object(Bucket="bucket", Key=KEY, Body=owner.to_json())


class Clock:
    """Time passes only while somebody sleeps, however long this machine takes to look."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(s3_conditional, "time", clock)
    return clock


def keys(s3: Any) -> list[str]:
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket="bucket").get("Contents", [])]


def test_as_long_as_it_is_renewed_another_is_refused_and_told_who_has_it(
    s3: Any, take: Callable[[Owner], S3Hold], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a busy machine may keep the one from renewing for a while
    monkeypatch.setattr(s3_conditional, "STALE_SECONDS", 20.0)
    first = take(ELSEWHERE)
    with pytest.raises(LocationTakenError) as error:
        take(HERE)
    assert f"the run {OTHER} (process 1 on elsewhere, since {ELSEWHERE.since}) saves its" in str(error.value)
    first.check()
    first.release()
    assert keys(s3) == []
    take(HERE).release()


def test_one_that_is_not_renewed_is_taken_over(
    s3: Any, take: Callable[[Owner], S3Hold], caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    def tell_the_time_of_writing(parsed: dict[str, Any], **_: Any) -> None:
        written = parsed["LastModified"].strftime("%a, %d %b %Y %H:%M:%S GMT")
        parsed["ResponseMetadata"]["HTTPHeaders"]["date"] = written  # however long this machine took to look

    s3.meta.events.register("after-call.s3.HeadObject", tell_the_time_of_writing)
    leave(s3, ELSEWHERE)
    with caplog.at_level(logging.WARNING):
        take(HERE).release()
    assert [record.message.split(" the run ")[0] for record in caplog.records] == [
        "waiting up to 1 s to see whether",
        f"took s3://bucket/{KEY} over from",
    ]


def test_one_that_was_not_renewed_for_long_is_taken_over_at_once(
    s3: Any, take: Callable[[Owner], S3Hold], clock: Clock
) -> None:
    def tell_the_time(parsed: dict[str, Any], **_: Any) -> None:
        now = datetime.now(timezone.utc) + timedelta(minutes=2)
        parsed["ResponseMetadata"]["HTTPHeaders"]["date"] = now.strftime("%a, %d %b %Y %H:%M:%S GMT")

    s3.meta.events.register("after-call.s3.HeadObject", tell_the_time)
    leave(s3, ELSEWHERE)
    before = clock.now
    take(HERE).release()
    assert clock.now == before


def test_a_job_that_is_begun_anew_on_another_host_waits_for_nothing(
    s3: Any, take: Callable[[Owner], S3Hold], clock: Clock
) -> None:
    leave(s3, replace(ELSEWHERE, job="job-7"))
    before = clock.now
    take(replace(HERE, job="job-7")).release()
    assert clock.now == before


def test_after_a_kill_the_next_on_the_same_machine_waits_for_nothing(
    s3: Any, take: Callable[[Owner], S3Hold], clock: Clock
) -> None:
    process = os.fork()
    if process == 0:
        time.sleep(60)
        os._exit(0)
    leave(s3, replace(HERE, run=OTHER, pid=process, start=owners.started(process) or 0))
    with pytest.raises(LocationTakenError, match=f"process {process} on "):
        take(HERE)
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    before = clock.now
    take(HERE).release()
    assert clock.now == before, "it is a zombie as yet"
    os.waitpid(process, 0)
    leave(s3, replace(HERE, run=OTHER, pid=os.getpid(), start=1))
    take(HERE).release()
    assert clock.now == before, "the number is another process's now"


def test_one_process_has_it_by_several_holds(s3: Any, take: Callable[[Owner], S3Hold]) -> None:
    one, other = take(HERE), take(replace(HERE, run=OTHER))
    one.check()
    one.release()
    other.check()
    assert keys(s3) == [KEY]
    other.release()
    assert keys(s3) == []


def test_a_hold_that_nothing_refers_to_is_given_up(s3: Any, take: Callable[[Owner], S3Hold]) -> None:
    take(HERE)
    gc.collect()

    def left() -> list[str]:
        return keys(s3) + [each.name for each in threading.enumerate() if each.name == "smddp-checkpoint-owner"]

    deadline = time.monotonic() + 10
    while left() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left() == []


def test_who_lost_it_is_told(s3: Any, take: Callable[[Owner], S3Hold]) -> None:
    hold = take(HERE)
    leave(s3, ELSEWHERE)
    with pytest.raises(LocationTakenError, match="elsewhere"):
        hold.check()
    hold.release()
    assert keys(s3) == [KEY], "it is the other's"


def test_an_object_that_somebody_deleted_is_written_again(s3: Any, take: Callable[[Owner], S3Hold]) -> None:
    hold = take(HERE)
    s3.delete_object(Bucket="bucket", Key=KEY)
    hold.check()
    assert keys(s3) == [KEY]
    hold.release()


def test_an_object_that_says_nothing_is_taken_for_one_that_is_left(s3: Any, take: Callable[[Owner], S3Hold]) -> None:
    s3.put_object(Bucket="bucket", Key=KEY, Body=b"?")
    take(HERE).release()
    assert keys(s3) == []


def test_of_several_at_the_same_moment_one_has_it(
    s3: Any, take: Callable[[Owner], S3Hold], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a busy machine may keep the one from renewing for a while
    monkeypatch.setattr(s3_conditional, "STALE_SECONDS", 20.0)
    outcomes: list[object] = []

    def work(number: int) -> None:
        try:
            outcomes.append(take(replace(ELSEWHERE, run=f"{number:012}", machine=f"machine {number}")))
        except LocationTakenError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(each).__name__ for each in outcomes) == ["LocationTakenError"] * 3 + ["S3Hold"]
    next(each for each in outcomes if isinstance(each, S3Hold)).release()


def test_checkpoints_do_not_see_it(s3: Any, take: Callable[[Owner], S3Hold]) -> None:
    hold = take(HERE)
    store = S3Store("s3://bucket/runs/7", s3)
    assert store.steps() == []
    assert list(store.newest_first()) == []
    hold.release()
