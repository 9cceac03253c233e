"""The `Store` protocol of all checkpoint stores, and the names of steps and files in a store.

A store handles names, bytes and durability. It knows nothing of the files' content, of validity, or of retention.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from smddp.checkpoint.format.manifest import MANIFEST_NAME, STATE_NAME, is_attempt_name, is_file_name
from smddp.checkpoint.stores.owner_record import Owner
from smddp.errors import CheckpointError

PARTIAL_SUFFIX = ".smddp-partial"
"""The suffix of an unfinished file, which readers ignore."""

_STEP_NAME = re.compile(r"step-(\d{12})", re.ASCII)


class StoreError(CheckpointError):
    """A store failed: it is unreachable, full, or not writable.

    It says nothing about the content: a checkpoint that cannot be read because of a StoreError is not damaged.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        """Take a message with the action, the store's answer and advice; `transient` if the call may succeed later."""
        super().__init__(message)
        self.transient = transient


class AlreadyCommittedError(CheckpointError):
    """Another writer committed a checkpoint of the same step meanwhile."""


class Hold(Protocol):
    """The ownership of a store: no other run saves or removes checkpoints there."""

    def check(self) -> None:
        """Verify the ownership before a commit or a removal. Raise LocationTakenError if another run owns the store."""

    def release(self) -> None:
        """Give up the ownership. Call it once; it does nothing in a fork."""


class Store(Protocol):
    """The location of the checkpoints of one run.

    A checkpoint is the manifest of a step and the files of one attempt to save it, in the attempt's own directory
    (``""`` in format 1: beside the manifest). Committed files never change. Files with other names are foreign: a store
    neither lists nor removes them.

    Every method raises StoreError, or OSError, if the store fails.
    """

    read_size: int
    """The preferred bytes of one `read_into`; larger files are read in pieces."""
    readers: int
    """The preferred number of reading threads, independent of the cores."""

    def __str__(self) -> str:
        """Return the location for messages: a path or ``s3://…``."""

    def path(self, step: int) -> str:
        """Return the location of one checkpoint, for messages and logs."""

    def check_writable(self) -> None:
        """Test write access, so that a run fails at its start. Raise StoreError with the reason and advice."""

    def hold(self, owner: Owner, *, make: bool) -> Hold | None:
        """Take ownership for `owner`, this process, until the hold is released or the process ends in any way.

        Several holds in one process share the ownership; readers need none. If the store's directory is absent, create
        it with `make`, else return None. Raise LocationTakenError if another run does not end in `PATIENCE_SECONDS`.
        """

    def steps(self) -> list[int]:
        """Return all steps with any file of ours, committed or not, oldest first."""

    def newest_first(self) -> Iterator[int]:
        """Return the same steps lazily, newest first; the first takes a bounded number of requests."""

    def attempts(self, step: int) -> list[str]:
        """Return the directories of all attempts to save a step, committed or not."""

    def write(self, step: int, directory: str, name: str, content: Sequence[memoryview]) -> None:
        """Write the pieces of one file of an attempt; its bytes are durable on return, its name after `commit`.

        A file left by a failed try is replaced.
        """

    def commit(self, step: int, directory: str, manifest: bytes, *, replacing: bytes | None) -> None:
        """Commit an attempt, whose files are all written, as the step's checkpoint; durable on return.

        Compare and swap: the existing manifest must be `replacing` (None: absent), or this raises
        AlreadyCommittedError, so one of several writers succeeds. After any other error the commit may have succeeded:
        `read_manifest` tells, and the same call may be repeated.
        """

    def read_manifest(self, step: int) -> bytes | None:
        """Return the bytes of manifest.json; None if absent.

        Raise CheckpointError, whose message is only the reason, if it is not a file or too large.
        """

    def size(self, step: int, directory: str, name: str) -> int | None:
        """Return the size of a file in bytes; None if absent."""

    def read_into(self, step: int, directory: str, name: str, offset: int, memory: memoryview) -> None:
        """Fill memory with the bytes of a file, starting at `offset`; safe to call from several threads.

        Raise CheckpointError, whose message is only the reason, if the file is absent or too short.
        """

    def discard(self, step: int, directory: str) -> None:
        """Remove the files of a failed or replaced attempt, if present, unless the manifest names the attempt."""

    def remove(self, step: int) -> None:
        """Remove all our files of a step, if present, the manifest first."""

    def write_beside(self, directory: str, name: str, content: bytes) -> None:
        """Write or replace a small file beside the steps, whole or not at all; the store's directory must exist."""

    def names_beside(self, directory: str) -> list[str]:
        """Return the names of the files in a directory beside the steps."""

    def read_beside(self, directory: str, name: str, *, largest: int) -> bytes | None:
        """Return such a file; None if absent. Raise CheckpointError if it is no file, or has over `largest` bytes."""


class CommitListener:
    """Follows the checkpoints of a store to a second place, such as S3, on rank 0. Override what that place needs."""

    def expect(self, step: int, manifest: bytes) -> None:
        """Receive step and manifest of a checkpoint that is durable in the store, in the background thread."""

    def settle(self, timeout: float) -> bool:  # noqa: ARG002
        """Wait, at most this number of seconds, until the newest checkpoint has arrived, and return whether it has."""
        return True

    def close(self) -> None:
        """Stop following, and tell which checkpoints have not arrived."""

    def path(self, step: int) -> str | None:  # noqa: ARG002
        """Return the location of a checkpoint in the second place, or None."""
        return None


def step_name(step: int) -> str:
    """Return the directory name of a step: ``step-000000001234``."""
    return f"step-{step:012}"


def step_of(name: str) -> int | None:
    """Return the step of a directory name; None if it is not a step's name."""
    match = _STEP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def path_in_step(directory: str, name: str) -> str:
    """Return a file's path in its step's directory: ``5f3a9c01d2e4-0007/state.json``; in format 1 ``state.json``.

    Raise CheckpointError for an invalid name: a manifest is not trusted.
    """
    if not is_file_name(name) or not (directory == "" or is_attempt_name(directory)):
        raise CheckpointError(f"{directory + '/' + name!r} is no path of a file of a checkpoint")
    return f"{directory}/{name}" if directory else name


def mentions(manifest: bytes, directory: str) -> bool:
    """Return whether a manifest of any version, even a damaged one, names the directory of this attempt."""
    if directory == "":
        return b'"directory"' not in manifest  # format 1
    return f'"{directory}"'.encode() in manifest


def is_ours(name: str) -> bool:
    """Return whether smddp gives such a name to a file. Only such files are removed with their step."""
    name = name.removesuffix(PARTIAL_SUFFIX)
    return name == MANIFEST_NAME or is_file_name(name)


def existing_manifest(store: Store, step: int) -> bytes | None:
    """Return the bytes of a step's manifest; None if absent, not a file, or too large."""
    try:
        return store.read_manifest(step)
    except StoreError:
        raise
    except CheckpointError:
        return None


def removed_beside(store: Store, step: int, names: Collection[str]) -> list[str]:
    """Return which of `names`, the files beside a manifest, are ours (format 1, or unfinished), in order of removal.

    Call it before the manifest is removed. Tensors there may be the user's: they count as ours only beside a
    state.json, and without a manifest of format 2. The state.json goes last, so that an interrupted removal can be
    repeated.
    """
    is_format_1 = STATE_NAME in names and (
        (existing := existing_manifest(store, step)) is None or mentions(existing, "")
    )
    ours = [
        name
        for name in names
        if name != MANIFEST_NAME
        and is_ours(name)
        and (is_format_1 or name == STATE_NAME or name.endswith(PARTIAL_SUFFIX))
    ]
    return sorted(ours, key=lambda name: (name == STATE_NAME, name))
