import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from smddp.cluster import Cluster
from smddp.distributed import FirstFailure, Membership, first_failure, is_communication_error
from smddp.distributed.ranks import PeerFailedError
from smddp.distributed.store import connect
from smddp.failure import HostMemory


def unexpected(report: str) -> None:
    raise AssertionError(f"given up for {report}")


@pytest.fixture
def memberships(make_cluster: Callable[[int, int], Cluster]) -> list[Membership]:
    """Two ranks that live in this process."""
    clusters = [make_cluster(rank, 2) for rank in range(2)]
    stores = [connect(cluster, timedelta(seconds=10), {}, serve=True) for cluster in clusters]
    return [
        Membership(cluster=cluster, backend="gloo", device=torch.device("cpu"), store=store)
        for cluster, store in zip(clusters, stores, strict=True)
    ]


@pytest.fixture
def ranks(memberships: list[Membership]) -> Iterator[list[FirstFailure]]:
    steps = (17, 16)
    ranks = [
        FirstFailure(membership, unexpected, steps=lambda rank=rank: steps[rank], memory=HostMemory())
        for rank, membership in enumerate(memberships)
    ]
    yield ranks
    for rank in ranks:
        rank.close()


def test_the_first_report_is_everybodys(ranks: list[FirstFailure]) -> None:
    assert ranks[1].settle("ValueError on rank 1", lost_contact=False) == "ValueError on rank 1"
    assert ranks[0].settle("KeyError on rank 0", lost_contact=False) == "ValueError on rank 1"


def test_a_rank_that_lost_contact_waits_for_the_cause(
    ranks: list[FirstFailure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_failure, "CAUSE_SECONDS", 60.0)
    late = threading.Timer(0.5, lambda: ranks[1].settle("ValueError on rank 1", lost_contact=False))
    late.start()
    assert ranks[0].settle("Connection closed by peer", lost_contact=True) == "ValueError on rank 1"


def test_lost_contact_is_the_report_where_no_cause_comes(
    ranks: list[FirstFailure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_failure, "CAUSE_SECONDS", 0.3)
    report = ranks[0].settle("Connection closed by peer", lost_contact=True)
    assert report == f"{first_failure._NO_CAUSE}\nConnection closed by peer"


@pytest.mark.parametrize(
    ("code", "told"),
    [(0, "Connection closed by peer"), (75, "Timed out waiting 1000ms for recv operation to complete")],
)
def test_a_rank_that_ended_well_too_early_is_named_with_the_steps_of_both(
    ranks: list[FirstFailure], monkeypatch: pytest.MonkeyPatch, code: int, told: str
) -> None:
    monkeypatch.setattr(first_failure, "CAUSE_SECONDS", 0.3)
    ranks[1].close(code=code)
    report = ranks[0].settle(told, lost_contact=True)
    assert report.startswith(
        f"Unequal steps: rank 1 of 2 ended its script with exit code {code} after 16 optimizer steps, and rank 0 waits "
        "for it after 17. All ranks must take the same number: end the training on all with trainer.finish_if, "
    )
    assert report.endswith(told)


def test_a_rank_that_ended_after_as_many_steps_is_told_so(
    ranks: list[FirstFailure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_failure, "CAUSE_SECONDS", 0.3)
    monkeypatch.setattr(ranks[0], "_steps", lambda: 16)
    ranks[1].close(code=0)
    report = ranks[0].settle("Connection closed by peer", lost_contact=True)
    assert (
        "after 16 as well: in a call that all ranks must make, such as trainer.save_model, or in its next step. All"
        in report
    )


def test_a_timeout_is_not_told_as_a_rank_that_was_killed(
    ranks: list[FirstFailure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_failure, "CAUSE_SECONDS", 0.3)
    told = "RuntimeError: [gloo/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete"
    report = ranks[0].settle(told, lost_contact=True)
    assert "did not come to a collective in time" in report
    assert "SMDDP_TIMEOUT" in report
    assert "killed" not in report
    assert report.endswith(told)


def test_a_failed_rank_stays_until_all_have_read_and_no_longer(
    memberships: list[Membership], ranks: list[FirstFailure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_failure, "_READERS_SECONDS", 30.0)
    ranks[0].settle("ValueError on rank 0", lost_contact=False)
    started = time.monotonic()
    ranks[0].await_readers()
    assert time.monotonic() - started < 25
    assert memberships[0].connect(timedelta(seconds=30)).add("first_failure/readers", 0) == 2


def test_a_rank_that_does_not_heed_a_failure_is_given_up(
    memberships: list[Membership], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_failure, "_HEED_SECONDS", 0.2)
    given_up: list[str] = []
    failing = FirstFailure(memberships[1], unexpected, steps=int, memory=HostMemory())
    failing.close()
    stuck = FirstFailure(memberships[0], given_up.append, steps=int, memory=HostMemory())

    failing.settle("ValueError on rank 1", lost_contact=False)

    deadline = time.monotonic() + 60
    while not given_up and time.monotonic() < deadline:
        time.sleep(0.05)
    assert given_up == ["ValueError on rank 1"]
    stuck.close()


def test_one_process_has_nobody_to_tell(make_cluster: Callable[[int, int], Cluster]) -> None:
    alone = Membership(cluster=make_cluster(0, 1), backend="gloo", device=torch.device("cpu"), store=None)
    rank = FirstFailure(alone, unexpected, steps=int, memory=HostMemory())
    assert rank.settle("ValueError", lost_contact=False) == "ValueError"
    rank.await_readers()
    rank.close()


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:25986"


@pytest.mark.parametrize(
    ("error", "communication"),
    [
        (RuntimeError(GLOO), True),
        (dist.DistBackendError("NCCL error: remote process exited"), True),
        (dist.DistNetworkError("Failed to recv, got 0 bytes"), True),
        (PeerFailedError("rank 0 failed: OSError: disk full"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ConnectionResetError("Connection reset by peer"), False),  # of the user's own, to S3 for one
        (ValueError("label 12"), False),
    ],
)
def test_lost_contact_is_told_from_a_cause(error: Exception, communication: bool) -> None:
    assert is_communication_error(error) is communication


def test_what_was_raised_from_lost_contact_is_lost_contact() -> None:
    try:
        try:
            raise RuntimeError(GLOO)
        except RuntimeError as lost:
            raise ValueError("the epoch failed") from lost
    except ValueError as error:
        assert is_communication_error(error)
