"""What lies below a prefix in S3. Which step is the newest is found without listing all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from smddp.checkpoint.format.manifest import LARGEST_STEP
from smddp.checkpoint.stores.s3_location import S3Location
from smddp.checkpoint.stores.store import step_name
from smddp.storage.s3_bucket import S3Bucket

PAGE = 1000
"""Names that one request lists: as many as S3 gives at most."""

MOST_REQUESTS = 95
"""Requests until the newest step is known, whatever the steps are: one page from the start, 31 doublings of a page's
reach until 10**12, and two a halving until a page's reach again. Ten thousand steps at equal distances take 4, or 7 if
the distance is 1."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Page:
    """What one request lists of the steps after a certain one."""

    steps: list[int]
    """Oldest first."""
    is_last: bool
    """Whether there are none after these."""


class Listing:
    """Lists the steps and the keys at a location."""

    def __init__(self, bucket: S3Bucket, location: S3Location) -> None:
        self._bucket = bucket
        self._location = location

    def page(self, after: int) -> Page:
        """List the first steps after one; -1: from the start."""
        above = self._location.above_steps
        start = f"{above}{step_name(after)}0" if after >= 0 else ""  # after all keys of the step: "0" follows on "/"
        answer = self._bucket.ask(
            self._doing,
            lambda client: client.list_objects_v2(
                Bucket=self._bucket.name, Prefix=f"{above}step-", Delimiter="/", MaxKeys=PAGE, StartAfter=start
            ),
        )
        found = [self._location.step_of(entry["Prefix"]) for entry in answer.get("CommonPrefixes", [])]
        return Page(steps=sorted(step for step in found if step is not None), is_last=not answer["IsTruncated"])

    def steps(self) -> list[int]:
        """List all steps, oldest first, in pages."""
        pages = self._bucket.pages(
            self._doing, "list_objects_v2", Prefix=f"{self._location.above_steps}step-", Delimiter="/"
        )
        found = [self._location.step_of(entry["Prefix"]) for page in pages for entry in page.get("CommonPrefixes", [])]
        return sorted(step for step in found if step is not None)

    def newest_first(self) -> Iterator[int]:
        """List all steps, newest first; up to the first it takes at most MOST_REQUESTS requests.

        More are needed only where a thousand names of other people begin with ``step-``.
        """
        newest = newest_page(self.page)
        if newest is None:
            yield from reversed(self.steps())
            return
        yield from reversed(newest)
        if newest:
            yield from (step for step in reversed(self.steps()) if step < newest[0])

    def keys(self, prefix: str) -> Iterator[str]:
        """List all keys that begin with a prefix."""
        for page in self._bucket.pages(f"could not list {self._bucket.uri(prefix)}", "list_objects_v2", Prefix=prefix):
            for entry in page.get("Contents", []):
                yield entry["Key"]

    @property
    def _doing(self) -> str:
        return f"could not list {self._location}"


def newest_page(page: Callable[[int], Page]) -> list[int] | None:
    """Find the last steps of an ordered list that can only be read forward, in pages, from any step on.

    Args:
        page: Lists the first steps after one.

    Returns:
        The last steps, oldest first, and the newest of all among them; none if there are none at all. None if a page
        had no step in it but was not the last, so that this search sees nothing.
    """
    found = page(-1)
    if found.is_last:
        return found.steps
    if not found.steps:
        return None
    low, high = found.steps, LARGEST_STEP  # the newest step is the last of low, or after it and not after high
    reach = max(PAGE, low[-1] - low[0])
    is_bounded = False  # whether a step was sought after the newest
    seen_after_low = overshot = False
    while True:
        if overshot and not seen_after_low:
            probe, seen_after_low = low[-1], True  # often there is little left
        elif is_bounded:
            probe = (low[-1] + high) // 2
        else:
            probe = min(low[-1] + reach, high)
        found = page(probe)
        overshot = not found.steps
        if found.steps and found.is_last:
            return found.steps
        if found.steps:
            low, reach, seen_after_low = found.steps, 2 * reach, False
        elif not found.is_last:
            return None
        elif probe == low[-1]:
            return low
        else:
            high, is_bounded = probe, True
