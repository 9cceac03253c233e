"""List steps and keys below a prefix in S3, and find the newest step without listing all steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from smddp.checkpoint.format.manifest import LARGEST_STEP
from smddp.checkpoint.stores.s3_location import S3Location
from smddp.checkpoint.stores.store import step_name
from smddp.storage.s3_bucket import S3Bucket

PAGE = 1000
"""Names per list request, S3's maximum."""

MOST_REQUESTS = 95
"""Requests to find the newest step, in the worst case: one page from the start, 31 doublings from a page's reach up to
10**12, and two for each halving back to a page's reach. Ten thousand evenly spaced steps take 4 requests, or 7 if they
are consecutive."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Page:
    """The answer to one list request: steps after a given step."""

    steps: list[int]
    """Oldest first."""
    is_last: bool
    """Whether no step follows."""


class Listing:
    """Lists the steps and the keys at a location."""

    def __init__(self, bucket: S3Bucket, location: S3Location) -> None:
        self._bucket = bucket
        self._location = location

    def page(self, after: int) -> Page:
        """List the first steps after `after`; -1 lists from the start."""
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
        """List all steps, newest first; the first one takes at most `MOST_REQUESTS` requests.

        It takes more only if a whole page of foreign names begins with ``step-``.
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
    """Return the last page of steps, oldest first, from a list that can only be read forward; [] if there are no steps.

    `page(after)` lists the first steps after one. None if a page has no steps and is not the last: then this search is
    blind, and the caller lists everything.

    Notes on the search:
      1. Invariant: the newest step is the last of `low`, or lies in (low[-1], high].
      2. Gallop: probe `reach` beyond low[-1], and double `reach` after each hit, until a probe lists no steps.
      3. After the first overshoot, list directly after low[-1] once: often little is left.
      4. Otherwise bisect between low[-1] and high.
    """
    found = page(-1)
    if found.is_last:
        return found.steps
    if not found.steps:
        return None
    low, high = found.steps, LARGEST_STEP
    reach = max(PAGE, low[-1] - low[0])
    is_bounded = False  # whether a probe lay after the newest step
    seen_after_low = overshot = False
    while True:
        if overshot and not seen_after_low:
            probe, seen_after_low = low[-1], True
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
