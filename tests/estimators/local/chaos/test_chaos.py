"""How often a fault is met: by count, or by a seed that gives the same again."""

from __future__ import annotations

import logging

import pytest

from estimators.local.chaos import Chaos, Fault, Reclaim, ServerError, Slow, Throttle
from estimators.local.chaos.chaos import PLATFORM_AGENT, meet_request_faults


def met(fault: Fault, times: int) -> list[bool]:
    chaos = Chaos([fault])
    return [chaos.meet(Fault, "a test") is fault for _ in range(times)]


@pytest.mark.parametrize(("fault", "times"), [(Reclaim(step=1), 1), (Reclaim(step=1, count=3), 3)])
def test_a_fault_is_met_so_many_times(fault: Fault, times: int) -> None:
    assert met(fault, 5) == [True] * times + [False] * (5 - times)


def test_the_same_seed_gives_the_same_hits() -> None:
    fault = Throttle(on="s3", probability=0.3, seed=1)
    hits = met(fault, 1000)
    assert hits == met(fault, 1000) != met(Throttle(on="s3", probability=0.3, seed=2), 1000)
    assert 250 < sum(hits) < 350
    assert sum(met(Throttle(on="s3", probability=0.3, count=5), 1000)) == 5
    assert all(met(Throttle(on="s3", probability=1), 100))


def test_what_is_set_is_shown_counted_and_cleared_and_each_is_said(caplog: pytest.LogCaptureFixture) -> None:
    chaos = Chaos()
    with caplog.at_level(logging.WARNING):
        chaos.set([Throttle(on="s3", count=2), Reclaim(step=3)])
        assert chaos.meet(Throttle, "s3:GET") is not None
        assert chaos.describe() == [("throttle on=s3 count=2", 1), ("reclaim step=3", 0)]
        chaos.set([])
    assert chaos.is_empty
    assert [record.message for record in caplog.records] == [
        "[platform] chaos: throttle on=s3 count=2; reclaim step=3",
        "[platform] chaos: throttle on=s3 count=2 is met by s3:GET",
        "[platform] chaos: no fault is set",
    ]


@pytest.mark.parametrize(
    ("service", "throttled", "failed"),
    [
        ("sagemaker", ("ThrottlingException", 400), ("InternalFailure", 500)),
        ("logs", ("ThrottlingException", 400), ("InternalFailure", 500)),
        ("sts", ("Throttling", 400), ("InternalFailure", 500)),
        ("s3", ("SlowDown", 503), ("InternalError", 500)),
    ],
)
def test_each_service_refuses_in_its_own_words(
    service: str, throttled: tuple[str, int], failed: tuple[str, int]
) -> None:
    chaos = Chaos([Throttle(on=service), ServerError(on=service), Slow(on=service, seconds=0)])
    assert meet_request_faults(chaos, service, "Any", PLATFORM_AGENT) is None
    refusals = [meet_request_faults(chaos, service, "Any", "Boto3") for _ in range(3)]
    assert [refusal and (refusal.code, refusal.status) for refusal in refusals] == [throttled, failed, None]


def test_a_request_meets_what_is_set_for_its_operation_or_its_method_of_s3() -> None:
    chaos = Chaos([Throttle(on="s3:PUT"), Throttle(on="ListModels")])
    asked = [("s3", "GET"), ("sagemaker", "DescribeModel"), ("s3", "PUT"), ("sagemaker", "ListModels")]
    assert [meet_request_faults(chaos, *each, "") is not None for each in asked] == [False, False, True, True]
