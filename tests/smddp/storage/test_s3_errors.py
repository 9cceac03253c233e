"""What is said of S3's errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from botocore.exceptions import EndpointConnectionError, InvalidRegionError, ReadTimeoutError
from urllib3.exceptions import LocationParseError

from smddp.storage import s3_errors
from smddp.storage.s3_errors import Cancelled, Refusal, Retries, explain

ERROR = ReadTimeoutError(endpoint_url="http://127.0.0.1")


def test_nothing_of_a_password_in_a_url_is_said() -> None:
    url = "http://me:p@ss@10.0.0.1:9000/bucket/key"
    for error in (
        EndpointConnectionError(endpoint_url=url),
        LocationParseError(url),
        InvalidRegionError(region_name=url),
    ):
        message = explain("could not read s3://bucket/key", error, {}).message
        assert "http://***@10.0.0.1:9000/bucket/key" in message
        assert "ss@" not in message


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A clock that only pauses move on."""
    clock = [0.0]
    monkeypatch.setattr(s3_errors.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(s3_errors.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    yield clock


def refusing(*, transient: bool) -> Callable[[Exception], Refusal]:
    return lambda error: Refusal(message=str(error), transient=transient)


def fail(calls: list[float], now: list[float]) -> None:
    calls.append(now[0])
    raise ERROR


def test_what_asking_again_does_not_help_is_asked_once(now: list[float]) -> None:
    calls: list[float] = []
    with pytest.raises(ReadTimeoutError):
        Retries(refusing(transient=False), seconds=100).ask(lambda: fail(calls, now))
    assert calls == [0.0]


def test_it_is_given_up_after_the_time_with_pauses_that_grow(now: list[float]) -> None:
    calls: list[float] = []
    retries = Retries(refusing(transient=True), seconds=60)
    with pytest.raises(ReadTimeoutError):
        retries.ask(lambda: fail(calls, now))
    pauses = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert 60 <= retries.waited <= 70
    assert all(0.05 * 2**place <= pause <= 0.11 * 2**place for place, pause in enumerate(pauses[:6]))
    assert max(pauses) <= 10.1


def test_whatever_comes_begins_the_time_anew(now: list[float]) -> None:
    calls: list[float] = []
    retries = Retries(refusing(transient=True), seconds=1)

    def trickle() -> str:
        calls.append(now[0])
        if len(calls) == 50:
            return "whole"
        retries.progress()
        raise ERROR

    assert retries.ask(trickle) == "whole"
    assert now[0] > 2


def test_nobody_waits_for_what_was_cancelled(now: list[float]) -> None:
    retries = Retries(refusing(transient=True), seconds=100, cancelled=lambda: now[0] > 1)
    with pytest.raises(Cancelled):
        retries.ask(lambda: fail([], now))
    assert now[0] < 1.1
