"""What a host prints reaches CloudWatch: in order, in time, and to the end."""

from __future__ import annotations

import io
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, BinaryIO, cast

import pytest
from botocore.exceptions import ClientError

from estimators.local.engine.hosted import logs as module
from estimators.local.engine.hosted.logs import HostLog


@pytest.fixture
def job() -> str:
    return f"job-{uuid.uuid4().hex[:8]}"


def follow(client: Any, job: str, output: bytes) -> HostLog:
    log = HostLog(client, job, "algo-1", began=int(time.time()), seen=lambda line, said: None)
    log.open()
    log.follow(io.BytesIO(output))
    log.close()
    return log


def test_lines_arrive_in_order_and_the_last_needs_no_newline(
    logs: Any, job: str, lines: Callable[..., list[str]]
) -> None:
    follow(logs, job, b"one\ntwo\r\n\nfour \xff\nfive")
    assert lines(job) == ["one", "two", " ", "four \ufffd", "five"]


def test_the_stream_is_named_as_on_aws(logs: Any, job: str) -> None:
    before = int(time.time())
    follow(logs, job, b"")
    (stream,) = logs.describe_log_streams(logGroupName=module.TRAINING_JOBS, logStreamNamePrefix=job)["logStreams"]
    prefix, _, epoch = stream["logStreamName"].rpartition("-")
    assert prefix == f"{job}/algo-1"
    assert before <= int(epoch) <= time.time()


def write_until_first_line(logs: Any, job: str, text: bytes, lines: Callable[..., list[str]]) -> None:
    """Write the text as a host does, see its first line in the log, and end the host."""
    reading, writing = os.pipe()
    log = HostLog(logs, job, "algo-1", began=int(time.time()), seen=lambda line, said: None)
    log.open()
    thread = threading.Thread(target=log.follow, args=(os.fdopen(reading, "rb", buffering=0),))
    thread.start()
    os.write(writing, text)
    deadline = time.monotonic() + 60
    while lines(job) != ["first"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.close(writing)
    thread.join()
    log.close()


def test_lines_are_there_while_the_host_runs(logs: Any, job: str, lines: Callable[..., list[str]]) -> None:
    write_until_first_line(logs, job, b"first\nhalf a li", lines)
    assert lines(job) == ["first", "half a li"]


def test_the_first_line_after_a_pause_is_not_held_back(
    logs: Any, job: str, lines: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_SECONDS", 3600)
    write_until_first_line(logs, job, b"first\n", lines)


def test_over_long_lines_come_in_pieces(logs: Any, job: str, lines: Callable[..., list[str]]) -> None:
    size = module.MAX_LINE_BYTES
    follow(logs, job, b"a" * (2 * size + 5) + b"\nb")
    assert [len(line) for line in lines(job)][-2:] == [5, 1]
    assert "".join(lines(job)) == "a" * (2 * size + 5) + "b"


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_long_progress_bar_is_cut_between_its_states(
    logs: Any, job: str, lines: Callable[..., list[str]], end: bytes
) -> None:
    states = [f"acc={number:07}" for number in range(2 * module.MAX_LINE_BYTES // 10)]
    follow(logs, job, "\r".join(states).encode() + end)
    assert len(lines(job)) > 1
    assert [state for line in lines(job) for state in line.split("\r")] == states


def test_every_line_is_shown_to_who_wants_to_see(logs: Any, job: str) -> None:
    seen: list[tuple[str, int]] = []
    log = HostLog(logs, job, "algo-1", began=int(time.time()), seen=lambda line, said: seen.append((line, said)))
    log.open()
    log.follow(io.BytesIO(b"1\n2\n"))
    log.close()
    assert [line for line, _ in seen] == ["1", "2"]
    group = {"logGroupName": module.TRAINING_JOBS}
    (stream,) = logs.describe_log_streams(**group, logStreamNamePrefix=job)["logStreams"]
    events = logs.get_log_events(**group, logStreamName=stream["logStreamName"])["events"]
    assert [said for _, said in seen] == [event["timestamp"] for event in events]


def test_the_tail_is_the_last_lines(logs: Any, job: str) -> None:
    log = follow(logs, job, b"".join(b"line %d\n" % number for number in range(100)))
    assert log.tail.splitlines() == [f"line {number}" for number in range(90, 100)]


class SlowLogs:
    """A CloudWatch that may take its time, and counts."""

    class exceptions:  # noqa: N801
        class ResourceAlreadyExistsException(Exception):  # noqa: N818
            pass

    def __init__(self, *, failing: bool = False) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.failing = failing
        self.batches: list[list[dict[str, Any]]] = []

    def create_log_group(self, **_: str) -> None: ...

    def create_log_stream(self, **_: str) -> None:
        if self.failing:
            raise ClientError({"Error": {"Code": "Throttling"}}, "CreateLogStream")

    def put_log_events(self, *, logEvents: list[dict[str, Any]], **_: str) -> None:  # noqa: N803
        self.answers.wait(60)
        if self.failing:
            raise ClientError({"Error": {"Code": "Throttling"}}, "PutLogEvents")
        self.batches.append(logEvents)


def test_batches_stay_below_cloudwatchs_limits(job: str) -> None:
    client = SlowLogs()
    follow(client, job, b"short\n" * 3000 + b"x" * 3_000_000)
    assert sum(len(batch) for batch in client.batches) >= 3000
    for batch in client.batches:
        assert len(batch) <= 10_000
        assert sum(len(event["message"]) + 26 for event in batch) <= 1 << 20
        assert batch == sorted(batch, key=lambda event: event["timestamp"])


def test_a_slow_cloudwatch_neither_blocks_the_host_nor_loses_the_end(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BUFFERED_BYTES", 100_000)
    client = SlowLogs()
    client.answers.clear()
    log = HostLog(cast("Any", client), job, "algo-1", began=int(time.time()), seen=lambda line, said: None)
    log.open()
    log.follow(cast("BinaryIO", io.BytesIO(b"".join(b"line %d\n" % number for number in range(50_000)))))
    assert not client.batches, "the host has waited for CloudWatch"
    client.answers.set()
    log.close()
    messages = [event["message"] for batch in client.batches for event in batch]
    assert messages[-1] == "line 49999"
    dropped = [message for message in messages if "were dropped" in message]
    assert dropped
    counted = sum(int(message.split()[0].strip("[")) for message in dropped)
    assert counted + len(messages) - len(dropped) == 50_000


def test_a_cloudwatch_that_refuses_is_no_reason_to_fail(job: str, caplog: pytest.LogCaptureFixture) -> None:
    follow(SlowLogs(failing=True), job, b"one\ntwo\n")
    assert "could not be made" in caplog.text
    told = [
        message.partition(" to ")[0].removeprefix("could not send ")
        for message in caplog.messages
        if message.startswith("could not send ")
    ]
    assert told in (["2 lines"], ["1 line", "1 line"])  # the second line may come with the first one, or after it


def test_what_is_no_text_is_escaped_and_ends_nothing(logs: Any, job: str, lines: Callable[..., list[str]]) -> None:
    log = HostLog(logs, job, "algo-1", began=int(time.time()), seen=lambda line, said: None)
    log.open()
    log.say("[platform] not-utf-8-\udcff is passed over")
    log.follow(io.BytesIO(b"\xed\xa0\x80 \x00 \x1b[0m\nlast"))
    log.close()
    assert lines(job) == ["[platform] not-utf-8-\\udcff is passed over", "\ufffd\ufffd\ufffd \x00 \x1b[0m", "last"]


def test_what_a_line_sets_off_is_said_after_it(logs: Any, job: str, lines: Callable[..., list[str]]) -> None:
    def seen(line: str, _: int) -> None:
        log.say(f"[platform] after {line}")

    log = HostLog(logs, job, "algo-1", began=int(time.time()), seen=seen)
    log.open()
    log.follow(io.BytesIO(b"step=3\n"))
    log.close()
    assert lines(job) == ["step=3", "[platform] after step=3"]


def test_an_error_of_any_kind_costs_no_more_than_its_lines(
    job: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_SECONDS", 60)
    all_said = threading.Event()
    monkeypatch.setattr(module, "make_stream", lambda *_: all_said.wait(60))  # else the first request has few lines
    client = SlowLogs()
    errors, put = iter([ValueError("odd")]), client.put_log_events

    def odd(**batch: Any) -> None:
        for error in errors:
            raise error
        put(**batch)

    client.put_log_events = odd  # type: ignore[method-assign]
    log = HostLog(cast("Any", client), job, "algo-1", began=int(time.time()), seen=lambda line, said: None)
    for _ in range(module.MAX_BATCH_EVENTS + 1):
        log.say("short")
    all_said.set()
    log.follow(cast("BinaryIO", io.BytesIO(b"")))
    log.close()
    (batch,) = client.batches
    assert [event["message"] for event in batch] == [
        "[1000 lines are missing here: the log did not take them]",
        "short",
    ]
    assert "1000 lines" in caplog.text


def test_the_last_lines_are_told_as_missing_too(job: str) -> None:
    client = SlowLogs(failing=True)
    put = client.put_log_events

    def fail_once(**batch: Any) -> None:
        try:
            put(**batch)
        finally:
            client.failing = False

    client.put_log_events = fail_once  # type: ignore[method-assign]
    follow(client, job, b"one\ntwo")
    messages = [event["message"] for batch in client.batches for event in batch]
    assert messages[0].endswith("missing here: the log did not take them]")
    assert messages[1:] in ([], ["two"])


def test_a_line_that_is_said_before_the_host_runs_is_in_the_log_without_it(
    logs: Any, job: str, lines: Callable[..., list[str]]
) -> None:
    log = HostLog(logs, job, "algo-1", began=int(time.time()), seen=lambda line, said: None)
    log.say("[platform] waits for capacity")
    deadline = time.monotonic() + 60
    while not logs_of(logs, job) or lines(job) != ["[platform] waits for capacity"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    log.close()
    log.close()
    log.say("[platform] failed")
    assert lines(job) == ["[platform] waits for capacity", "[platform] failed"]


def logs_of(logs: Any, job: str) -> list[Any]:
    try:
        found: list[Any] = logs.describe_log_streams(logGroupName=module.TRAINING_JOBS, logStreamNamePrefix=job)[
            "logStreams"
        ]
    except logs.exceptions.ResourceNotFoundException:
        return []
    return found


def test_a_host_that_says_nothing_makes_no_stream_before_it_runs(job: str) -> None:
    client = SlowLogs()
    HostLog(cast("Any", client), job, "algo-1", began=1, seen=lambda line, said: None).close()
    assert client.batches == []
