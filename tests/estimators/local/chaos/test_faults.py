"""Faults as values and as text: what one writes, the other reads, and nothing else is taken."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.local.chaos import (
    Fault,
    LoseHost,
    NoCapacity,
    Reclaim,
    ServerError,
    Slow,
    Throttle,
    parse,
    tag,
)
from estimators.service_model import service_model, violations

OFTEN = {
    "count": st.none() | st.integers(1, 10**9),
    "probability": st.none() | st.floats(1e-9, 1),
    "seed": st.integers(0, 10**9),
}
SECONDS = st.floats(0, 3600) | st.integers(0, 3600)
ON = {"on": st.sampled_from(["s3", "s3:GET", "DescribeTrainingJob"])}
FAULTS = st.one_of(
    *(st.builds(kind, **ON, **OFTEN) for kind in (Throttle, ServerError)),
    st.builds(Slow, **ON, seconds=SECONDS, **OFTEN),
    st.builds(
        NoCapacity, seconds=st.none() | SECONDS, instance_type=st.sampled_from([None, "ml.m7i-flex.large"]), **OFTEN
    ),
    st.builds(LoseHost, step=st.integers(0, 10**9), host=st.sampled_from(["algo-1", "algo-254"]), **OFTEN),
    st.builds(Reclaim, seconds=SECONDS, **OFTEN),
)


@given(st.lists(FAULTS, max_size=5))
def test_faults_are_read_from_their_text_as_they_were(faults: list[Fault]) -> None:
    assert list(parse(" ".join(map(str, faults)))) == faults


@given(st.lists(FAULTS, min_size=1, max_size=1))
def test_the_text_is_one_that_a_tag_takes(faults: list[Fault]) -> None:
    shape: Any = service_model().shape_for("TagValue")
    assert list(violations(shape, str(faults[0]))) == []


@given(st.text(max_size=60))
def test_a_text_that_is_none_is_refused_with_a_reason_and_by_nothing_else(text: str) -> None:
    try:
        parse(text)
    except ValueError as error:
        assert type(error) is ValueError


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("reclaimed step=3", "'reclaimed' is no fault. Did you mean 'reclaim'?"),
        ("step=3", "'step=3' is no fault. There are: error, lose-host, no-capacity, reclaim, slow, throttle."),
        ("reclaim", "reclaim: say when it comes, by seconds= or by step=, and not by both"),
        ("reclaim step=3 seconds=3", "and not by both"),
        ("reclaim step=3 step=4", "reclaim: step= comes twice"),
        ("reclaim steps=3", "reclaim has no steps=. Did you mean 'step'?"),
        ("reclaim step=3.5", "reclaim: step='3.5' is not a whole number, such as 3"),
        ("reclaim seconds=nan", "reclaim: seconds='nan' is not a number, such as 3"),
        ("reclaim seconds=3601", "reclaim: seconds=3601: give a number from 0 to 3600"),
        ("reclaim step=3 count=0", "reclaim: count=0: give a whole number from 1"),
        ("reclaim step=3 probability=0", "probability=0 is never met"),
        ("lose-host step=3 host=../x", "host='../x': give algo-1, algo-2, …"),
        ("no-capacity instance_type=p4", "no-capacity: instance_type='p4': give one such as ml.g5.xlarge"),
        ("throttle", "throttle needs on="),
        ("slow on=s3", "slow needs seconds="),
        ("throttle on=s3/x", "on='s3/x': give an operation such as DescribeTrainingJob"),
        ("reclaim step=3 " * 101, "there are 101 faults: at most 100 can be set at once"),
    ],
)
def test_what_is_wrong_is_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse(text)


@pytest.mark.parametrize("value", ["3", True, 2.5, float("nan")])
def test_a_value_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="reclaim: step="):
        Reclaim(step=value)


def test_a_tag_takes_no_fault_of_requests_and_no_more_than_fits() -> None:
    with pytest.raises(ValueError, match="throttle on=s3 is no fault of a job: set it for the platform"):
        tag(Throttle(on="s3"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the faults are 323 characters; a tag takes 256: set fewer"):
        tag(*[Reclaim(seconds=3, count=12)] * 12)
