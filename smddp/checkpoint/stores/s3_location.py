"""The S3 location of a run's checkpoints: parse its URI, build keys, and recognise our keys."""

from __future__ import annotations

import re
from dataclasses import dataclass

from smddp.checkpoint.format.names import MANIFEST_NAME, is_attempt_name
from smddp.checkpoint.stores.store import is_ours, path_in_step, step_name, step_of

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
