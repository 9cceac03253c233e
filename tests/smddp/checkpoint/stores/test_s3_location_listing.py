"""The newest of ten thousand steps is found in a few requests, whatever the steps are."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import boto3
import moto
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint.format.manifest import LARGEST_STEP
from smddp.checkpoint.stores import s3_location
from smddp.checkpoint.stores.s3 import S3Store
from smddp.checkpoint.stores.s3_location import MOST_REQUESTS, Listing, Page, S3Location, newest_page, store_error
from smddp.storage.s3_bucket import S3Bucket


class Bucket:
    """Lists steps as S3 does, and counts the requests."""

    def __init__(self, steps: list[int]) -> None:
        self.steps = sorted(steps)
        self.requests = 0

    def page(self, after: int) -> Page:
        self.requests += 1
        first = bisect_right(self.steps, after)
        return Page(steps=self.steps[first : first + 1000], is_last=first + 1000 >= len(self.steps))


class Counted(Listing):
    """Counts the requests for pages."""

    requests = 0

    def page(self, after: int) -> Page:
        self.requests += 1
        return super().page(after)


@pytest.mark.parametrize(
    ("steps", "most"),
    [
        ([], 1),
        ([7], 1),
        (list(range(1000)), 1),
        (list(range(1001)), 3),
        (list(range(10_000)), 7),
        (list(range(0, 1_000_000, 100)), 4),
        (list(range(500, 10**9, 100_000)), 4),
        (list(range(0, 10_000_000, 100)), 14),
        ([*range(1000), LARGEST_STEP], MOST_REQUESTS),
        ([*range(1000), 2**39], MOST_REQUESTS),
        (list(range(0, 10**12, 10**8)), 4),
    ],
)
def test_the_newest_takes_few_requests(steps: list[int], most: int) -> None:
    bucket = Bucket(steps)
    newest = newest_page(bucket.page)
    assert newest is not None
    assert newest == steps[len(steps) - len(newest) :]
    assert bool(newest) == bool(steps)
    assert bucket.requests <= most


runs = st.lists(
    st.tuples(
        st.one_of(st.integers(0, LARGEST_STEP), st.integers(0, 2**20)),
        st.integers(1, 3000),
        st.sampled_from([1, 2, 3, 100, 10**6]),
    ),
    max_size=5,
)


@given(runs)
def test_no_steps_take_more_than_the_bound(runs: list[tuple[int, int, int]]) -> None:
    steps = {first + index * apart for first, count, apart in runs for index in range(count)}
    bucket = Bucket([step for step in steps if step <= LARGEST_STEP])
    newest = newest_page(bucket.page)
    assert newest is not None
    assert newest == bucket.steps[len(bucket.steps) - len(newest) :]
    assert bool(newest) == bool(bucket.steps)
    assert bucket.requests <= MOST_REQUESTS


def bucket_of(client: Any, location: S3Location) -> S3Bucket:
    return S3Bucket(location.bucket, advice={}, failure=store_error, client=client)


def test_a_page_full_of_other_peoples_names_ends_the_search() -> None:
    assert newest_page(lambda _: Page(steps=[], is_last=False)) is None


@pytest.fixture
def in_memory() -> Any:
    with moto.mock_aws():
        client = boto3.client("s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
        client.create_bucket(Bucket="bucket")
        yield client


@pytest.mark.parametrize("prefix", ["", "runs/7"])
@pytest.mark.slow
def test_more_checkpoints_than_a_page(in_memory: Any, prefix: str) -> None:
    location = S3Location.parse(f"s3://bucket/{prefix}")
    for step in range(100, 110_001, 100):
        in_memory.put_object(Bucket="bucket", Key=location.manifest_key(step), Body=b"")
    listing = Counted(bucket_of(in_memory, location), location)
    newest = listing.newest_first()
    assert [next(newest), next(newest)] == [110_000, 109_900]
    assert listing.requests <= 3
    assert listing.page(109_900) == Page(steps=[110_000], is_last=True)
    assert list(newest) == list(range(109_800, 0, -100))
    assert S3Store(f"s3://bucket/{prefix}", in_memory).steps() == list(range(100, 110_001, 100))


@pytest.mark.seaweedfs
def test_a_real_server_pages_in_the_same_way(s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_location, "PAGE", 10)
    location = S3Location.parse(f"s3://{bucket}/runs/7")
    foreign = ["runs/7/step-final/x", "runs/7/step-12/x", "runs/7/step-000000000300", "runs/7/notes", "runs/8/x"]
    for key in [location.manifest_key(step) for step in range(1, 400, 3)] + foreign:
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    listing = Counted(bucket_of(s3, location), location)
    newest = listing.newest_first()
    assert next(newest) == 397
    assert listing.requests <= 12
    assert listing.page(7) == Page(steps=list(range(10, 38, 3)), is_last=False)
    assert listing.page(394) == Page(steps=[397], is_last=True)
    assert list(newest) == list(range(394, 0, -3))
    assert listing.steps() == list(range(1, 400, 3))


@pytest.mark.seaweedfs
def test_many_foreign_names_cost_requests_and_nothing_else(
    s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_location, "PAGE", 5)
    location = S3Location.parse(f"s3://{bucket}")
    for key in [location.manifest_key(step) for step in (3, 5)] + [f"step-{number}x/y" for number in range(40)]:
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    assert list(Listing(bucket_of(s3, location), location).newest_first()) == [5, 3]
