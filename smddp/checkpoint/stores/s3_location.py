"""A place in S3 for the checkpoints of one run: which URIs there are, and which keys below them are ours."""

from __future__ import annotations

import re
from dataclasses import dataclass

from smddp.checkpoint.format.names import MANIFEST_NAME, is_attempt_name
from smddp.checkpoint.stores.store import is_ours, path_in_step, step_name, step_of

_URI = re.compile(r"s3://(?P<bucket>[^/]*)(?:/(?P<prefix>.*))?", re.DOTALL)
# docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html; the aliases of access points look the same.
_BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_DIRECTORY_BUCKET = "--x-s3"
_LONGEST_PREFIX = 800  # bytes: a key has 1024 at most, and step, attempt and file need some of them


@dataclass(kw_only=True, slots=True, frozen=True)
class S3Location:
    """A bucket and a prefix in it: ``<prefix>/step-000000001234/`` lies a checkpoint, as it would in a directory."""

    bucket: str
    prefix: str
    """Without a slash at its ends; empty for the bucket's root."""

    @classmethod
    def parse(cls, uri: str) -> S3Location:
        """Read ``s3://bucket/prefix``; slashes at the end do not count.

        Raises:
            ValueError: It is no such URI, or keys below it could be mistaken for others.
        """
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
        """What all keys of steps begin with."""
        return f"{self.prefix}/" if self.prefix else ""

    def step_prefix(self, step: int) -> str:
        """Return what all keys of a step begin with."""
        return f"{self.above_steps}{step_name(step)}/"

    def manifest_key(self, step: int) -> str:
        """Return the key of the commit of a step."""
        return self.step_prefix(step) + MANIFEST_NAME

    def key(self, step: int, directory: str, name: str) -> str:
        """Return the key of a file; ``directory`` is empty for one beside the manifest.

        Raises:
            CheckpointError: No checkpoint of ours has such a file.
        """
        return self.step_prefix(step) + path_in_step(directory, name)

    def step_of(self, key: str) -> int | None:
        """Return the step that a key, or the prefix of a step, belongs to; None if that is no step."""
        if not key.startswith(self.above_steps):
            return None
        name, slash, _ = key[len(self.above_steps) :].partition("/")
        return step_of(name) if slash else None

    def attempt_of(self, key: str) -> str | None:
        """Return the attempt that a key belongs to, empty for a file beside the manifest; None if it is not ours."""
        step = self.step_of(key)
        if step is None:
            return None
        directory, slash, name = key[len(self.step_prefix(step)) :].rpartition("/")
        return directory if is_ours(name) and (not slash or is_attempt_name(directory)) else None
