"""R6, in short: a sample of faults at a sample of requests. `tests.torture.s3_faults` does any number of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torture.fault_proxy import Fault, FaultProxy
from tests.torture.s3_faults import Case, Torturer
from tests.torture.s3_server import Server

pytestmark = pytest.mark.seaweedfs


@pytest.fixture
def torturer(server: Server, proxy: FaultProxy) -> Iterator[Torturer]:
    return Torturer(server, proxy)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.slow
def test_a_save_comes_through_or_fails_in_time_and_leaves_nothing(torturer: Torturer, fault: Fault) -> None:
    position = list(Fault).index(fault)
    case = Case(is_save=True, replaces=position % 2 == 0, fault=fault, first=17 - 2 * position, count=1)
    error, wrong = torturer.run(case)
    assert wrong == []
    assert (error is None) == (fault is not Fault.EXPIRED)


@pytest.mark.parametrize("request_", [0, 4], ids=["begin", "completion"])
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RESET])
def test_a_multipart_upload_whose_begin_or_completion_is_not_answered_leaves_no_other_open(
    torturer: Torturer, fault: Fault, request_: int
) -> None:
    error, wrong = torturer.run(Case(is_save=True, replaces=False, fault=fault, first=request_, count=1))
    assert (error, wrong) == (None, [])


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.slow
def test_a_load_comes_through_or_fails_in_time(torturer: Torturer, fault: Fault) -> None:
    case = Case(is_save=False, replaces=False, fault=fault, first=list(Fault).index(fault), count=1)
    error, wrong = torturer.run(case)
    assert wrong == []
    assert (error is None) == (fault is not Fault.EXPIRED)


@pytest.mark.parametrize("request_", [1, 3, 4], ids=["manifest", "part", "next part"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.slow
def test_an_answer_that_ends_too_early_is_asked_for_from_there_on(
    torturer: Torturer, request_: int, count: int
) -> None:
    case = Case(is_save=False, replaces=False, fault=Fault.TRUNCATED, first=request_, count=count)
    assert torturer.run(case) == (None, [])


@pytest.mark.parametrize("first", [0, 5])  # the first request, or one in the midst of the upload
@pytest.mark.parametrize("fault", [Fault.INTERNAL_ERROR, Fault.SLOW_DOWN, Fault.SILENCE, Fault.REFUSED, Fault.EXPIRED])
@pytest.mark.slow
def test_a_server_that_fails_for_good_is_an_error_in_time(torturer: Torturer, fault: Fault, first: int) -> None:
    error, wrong = torturer.run(Case(is_save=True, replaces=True, fault=fault, first=first, count=1000))
    assert wrong == []
    assert error is not None
    assert error.transient is (fault is not Fault.EXPIRED)
