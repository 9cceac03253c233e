"""FilterLogEvents answers the streams whose names begin with the prefix, and the events that match; no others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from estimators.local import LocalSageMaker

GROUP = "/aws/sagemaker/TrainingJobs"


@pytest.fixture(scope="module")
def logs() -> Iterator[Any]:
    """Logs with two jobs: `a` with more streams than DescribeLogStreams gives on a page, and `ab`."""
    with LocalSageMaker() as platform:
        client = platform.boto_session.client("logs")
        client.create_log_group(logGroupName=GROUP)
        for stream in ("ab/algo-1", *(f"a/algo-{number}" for number in range(1, 53))):
            client.create_log_stream(logGroupName=GROUP, logStreamName=stream)
            if stream.endswith(("-1", "-52")):
                event = {"timestamp": int(time.time() * 1000), "message": f"from {stream}"}
                client.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=[event])
        yield client


@pytest.mark.parametrize(
    ("prefix", "streams"),
    [
        ("a/", ["a/algo-1", "a/algo-52"]),
        ("ab/", ["ab/algo-1"]),
        ("a", ["a/algo-1", "a/algo-52", "ab/algo-1"]),
        ("never/", []),
    ],
)
def test_only_streams_with_the_prefix_are_answered(logs: Any, prefix: str, streams: list[str]) -> None:
    events = logs.filter_log_events(logGroupName=GROUP, logStreamNamePrefix=prefix)["events"]
    assert sorted(event["logStreamName"] for event in events) == streams
    assert {event["message"] for event in events} == {f"from {stream}" for stream in streams}


@pytest.mark.parametrize("more", [{}, {"logStreamNamePrefix": "job/"}, {"interleaved": False}], ids=str)
def test_the_events_of_all_streams_are_in_the_order_of_time(logs: Any, more: dict[str, Any]) -> None:
    """A platform that starts again may get an earlier attempt's lines after those of the one that runs."""
    group, now = f"ordered {more}".translate({ord(each): "-" for each in " {}:',"}), int(time.time() * 1000)
    logs.create_log_group(logGroupName=group)
    for stream, moments in (("job/algo-1-2", [3, 4]), ("job/algo-1-1", [1, 2])):
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
        events = [{"timestamp": now - 10 + moment, "message": str(moment)} for moment in moments]
        logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)
    events = logs.filter_log_events(logGroupName=group, **more)["events"]
    assert [event["message"] for event in events] == ["1", "2", "3", "4"]


def test_pages_and_patterns_work_with_a_prefix(logs: Any) -> None:
    pages = logs.get_paginator("filter_log_events").paginate(
        logGroupName=GROUP, logStreamNamePrefix="a/", filterPattern="from", PaginationConfig={"PageSize": 1}
    )
    assert [len(page["events"]) for page in pages if page["events"]] == [1, 1]


def test_an_unknown_group_and_a_prefix_beside_names_are_refused(logs: Any) -> None:
    with pytest.raises(logs.exceptions.ResourceNotFoundException):
        logs.filter_log_events(logGroupName="none", logStreamNamePrefix="a/")
    with pytest.raises(ClientError, match="either"):
        logs.filter_log_events(logGroupName=GROUP, logStreamNamePrefix="a/", logStreamNames=["a/algo-1"])


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("", [1, 52, 1]),
        ("52", [52]),
        ("algo from", [1, 52, 1]),
        ('"ab/" from', [1]),
        ('"from a/" "-1"', [1]),
        ("never ab", []),
        ("?never ?52", [52]),
        ("-ab", [1, 52]),
        ('-"a/"', [1]),
    ],
)
def test_only_events_that_match_the_pattern_are_answered(logs: Any, pattern: str, numbers: list[int]) -> None:
    events = logs.filter_log_events(logGroupName=GROUP, filterPattern=pattern)["events"]
    assert sorted(int(event["message"].rpartition("-")[2]) for event in events) == sorted(numbers)


def test_the_limit_counts_the_events_that_match_and_the_next_page_goes_on(logs: Any) -> None:
    asked: dict[str, Any] = {"logGroupName": GROUP, "filterPattern": '"a/"', "limit": 1}
    first = logs.filter_log_events(**asked)
    second = logs.filter_log_events(**asked, nextToken=first["nextToken"])
    assert [len(page["events"]) for page in (first, second)] == [1, 1]
    assert {page["events"][0]["message"] for page in (first, second)} == {"from a/algo-1", "from a/algo-52"}
    assert "nextToken" not in second


@pytest.mark.parametrize("pattern", ["[a,b]", "{ $.a = 1 }", "%zzzz%", "a.b", '"open', "?from never", '"a"b', "- a"])
def test_a_pattern_that_is_not_played_is_refused(logs: Any, pattern: str) -> None:
    with pytest.raises(logs.exceptions.InvalidParameterException, match=r"Invalid filter pattern .* takes words"):
        logs.filter_log_events(logGroupName=GROUP, filterPattern=pattern)
