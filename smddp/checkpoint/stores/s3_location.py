"""The S3 location of a run's checkpoints: its URI, its keys, the list of its steps, and the meaning of S3's refusals.

The newest step is found without a list of all steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from smddp.checkpoint.format.manifest import LARGEST_STEP, MANIFEST_NAME, is_attempt_name
from smddp.checkpoint.stores.store import StoreError, is_ours, path_in_step, step_name, step_of
from smddp.errors import CheckpointError
from smddp.storage.s3_bucket import S3Bucket
from smddp.storage.s3_download import Downloads, TooLargeError
from smddp.storage.s3_errors import Refusal

_URI = re.compile(r"s3://(?P<bucket>[^/]*)(?:/(?P<prefix>.*))?", re.DOTALL)
# docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html; the aliases of access points look the same.
_BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_DIRECTORY_BUCKET = "--x-s3"
_LONGEST_PREFIX = 800  # bytes: S3 limits a key to 1024, and step, attempt and file name need the rest


@dataclass(kw_only=True, slots=True, frozen=True)
class S3Location:
    """A bucket and a prefix. A checkpoint is below ``<prefix>/step-000000001234/``, laid out as in a directory."""

    bucket: str
    prefix: str
    """Without leading or trailing slashes; empty for the bucket's root."""

    @classmethod
    def parse(cls, uri: str) -> S3Location:
        """Parse ``s3://bucket/prefix``, ignoring trailing slashes. Raise ValueError for any other URI."""
        match = _URI.fullmatch(uri)
        if match is None:
            raise ValueError(f"{uri!r} is no place in S3: expected s3://bucket/prefix")
        bucket, prefix = match["bucket"], (match["prefix"] or "").rstrip("/")
        if not _BUCKET.fullmatch(bucket):
            raise ValueError(
                f"{uri!r} names no bucket: a bucket's name has 3 to 63 lower-case letters, digits, '-' and '.'"
            )
        if bucket.endswith(_DIRECTORY_BUCKET):
            raise ValueError(
                f"{uri!r} is in a directory bucket (S3 Express), which lists its keys in no order; "
                "use a general purpose bucket"
            )
        if prefix and (not prefix.isprintable() or not {"", ".", ".."}.isdisjoint(prefix.split("/"))):
            raise ValueError(
                f"{uri!r} cannot hold checkpoints: between its slashes must stand names, neither empty nor '.' nor "
                "'..', of printable characters"
            )
        if len(prefix.encode()) > _LONGEST_PREFIX:
            raise ValueError(f"{uri[:80]!r}... is too long: the prefix may have {_LONGEST_PREFIX} bytes")
        return cls(bucket=bucket, prefix=prefix)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def above_steps(self) -> str:
        """The common prefix of all keys."""
        return f"{self.prefix}/" if self.prefix else ""

    def step_prefix(self, step: int) -> str:
        """Return the common prefix of a step's keys."""
        return f"{self.above_steps}{step_name(step)}/"

    def manifest_key(self, step: int) -> str:
        """Return the key of a step's manifest, whose existence commits the step."""
        return self.step_prefix(step) + MANIFEST_NAME

    def key(self, step: int, directory: str, name: str) -> str:
        """Return the key of a file; ``directory`` is empty in format 1. Raise CheckpointError for an invalid name."""
        return self.step_prefix(step) + path_in_step(directory, name)

    def step_of(self, key: str) -> int | None:
        """Return the step of a key or of a step's prefix; None if it belongs to no step."""
        if not key.startswith(self.above_steps):
            return None
        name, slash, _ = key[len(self.above_steps) :].partition("/")
        return step_of(name) if slash else None

    def attempt_of(self, key: str) -> str | None:
        """Return the attempt of a key; empty for a file beside the manifest, None for a foreign key."""
        step = self.step_of(key)
        if step is None:
            return None
        directory, slash, name = key[len(self.step_prefix(step)) :].rpartition("/")
        return directory if is_ours(name) and (not slash or is_attempt_name(directory)) else None


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


ADVICE = {
    "AccessDenied": (
        "allow the role s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and, on the bucket, "
        "s3:ListBucket and s3:ListBucketMultipartUploads, and the key's kms:GenerateDataKey and kms:Decrypt if there "
        "is one"
    ),
    "SlowDown": "S3 limits the rate of requests: save less often, or under another prefix",
    "EntityTooSmall": "this server wants parts of at least 5 MiB: leave part_size as it is",
    "QuotaExceeded": "there is no room left: remove something, or ask for more",
}


def store_error(refused: Refusal) -> StoreError:
    """Convert a refusal to a StoreError."""
    return StoreError(refused.message, transient=refused.transient)


def read_small(downloads: Downloads, key: str, *, largest: int) -> tuple[bytes, str] | None:
    """Read a small object in one request: its bytes and their ETag; None if absent.

    Raise CheckpointError, whose message is only the reason, if it has more than `largest` bytes.
    """
    try:
        return downloads.read_whole(key, largest=largest)
    except TooLargeError as error:
        raise CheckpointError(f"{key.rpartition('/')[2]} is not a file of at most {largest} bytes") from error
