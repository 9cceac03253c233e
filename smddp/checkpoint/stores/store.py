"""What a place for checkpoints can do, whichever it is, and how the steps in it are called.

A store knows names, bytes and durability. What is in the files, which checkpoints are valid and which of them stay
are the concern of others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from smddp.checkpoint.format.names import MANIFEST_NAME, STATE_NAME, is_attempt_name, is_file_name
from smddp.checkpoint.stores.owner import Owner
from smddp.errors import CheckpointError

PARTIAL_SUFFIX = ".smddp-partial"
"""How a file's name ends that is not finished and, as long as it is called so, never counts."""

_STEP_NAME = re.compile(r"step-(\d{12})", re.ASCII)


class StoreError(CheckpointError):
    """A store did not do what it was asked to: it cannot be reached, is full or may not be written.

    It says nothing about what lies there: a checkpoint that cannot be read for such a reason is not damaged.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        """Say what was tried, what the store answered and what to do.

        Args:
            message: That.
            transient: The same call may succeed later although nobody does anything.
        """
        super().__init__(message)
        self.transient = transient


class AlreadyCommittedError(CheckpointError):
    """Another writer committed a checkpoint of the same step in the meantime."""


class Hold(Protocol):
    """A place that this process has: no other run saves or removes anything there."""

    def check(self) -> None:
        """See that it is still so, before something is committed or removed.

        Raises:
            PlaceTakenError: Another run has it.
        """

    def release(self) -> None:
        """Let others have it. Once only; in a fork it does nothing."""


class Store(Protocol):
    """Where the checkpoints of one run lie.

    A checkpoint is the manifest of a step and the files of one attempt to save it, in the attempt's own directory
    (``""`` in format 1: beside the manifest). An attempt's files are never changed once they are committed. Whatever
    has another name is other people's: it is not seen and not removed.

    Every method raises StoreError, or OSError, when the store does not do it.
    """

    read_size: int
    """Bytes that one `read_into` had better ask for: what is large is read in pieces of this size."""
    readers: int
    """Threads that had better read at a time, however few cores there are."""

    def __str__(self) -> str:
        """Give the location for people: a path or ``s3://…``."""

    def path(self, step: int) -> str:
        """Give the location of one checkpoint, for people and logs."""

    def check_writable(self) -> None:
        """Find out now whether a checkpoint can be written here, and not after the first hour of work.

        Raises:
            StoreError: It cannot; says why and what to do.
        """

    def hold(self, owner: Owner, *, make: bool) -> Hold | None:
        """Have the place until the hold is released, or this process ends in whatever way.

        Readers need none. A process has the place once, by however many holds.

        Args:
            owner: Who: this process.
            make: Whether to make the place if it is not there; otherwise the answer is None then.

        Raises:
            PlaceTakenError: Another run has it, and did not end within `PATIENCE_SECONDS`.
        """

    def steps(self) -> list[int]:
        """Give all steps that something of ours is there of, committed or not, oldest first."""

    def newest_first(self) -> Iterator[int]:
        """Give the same steps, newest first, lazily: the first costs a bounded number of requests."""

    def attempts(self, step: int) -> list[str]:
        """Give the directories of all attempts to save a step that left something there, committed or not."""

    def write(self, step: int, directory: str, name: str, content: Sequence[memoryview]) -> None:
        """Write one file of an attempt, the pieces one after the other; its bytes are durable when this returns.

        Its name is durable after `commit`. A file that a failed try left there is replaced.
        """

    def commit(self, step: int, directory: str, manifest: bytes, *, replacing: bytes | None) -> None:
        """Make the files of an attempt the checkpoint of a step: it is that, durably, when this returns.

        Compares and swaps: of several writers one succeeds. After any other error than AlreadyCommittedError the
        manifest may stand there nevertheless, and `read_manifest` tells. The same call again is no error then.

        Args:
            step: The step.
            directory: The attempt's; all its files are written.
            manifest: The bytes of manifest.json.
            replacing: The bytes that must stand there; None: nothing.

        Raises:
            AlreadyCommittedError: Something else stands there.
        """

    def read_manifest(self, step: int) -> bytes | None:
        """Give the bytes of manifest.json; None where there is none.

        Raises:
            CheckpointError: It is no file, or too large to be one of ours. The message is only the reason.
        """

    def size(self, step: int, directory: str, name: str) -> int | None:
        """Give the size of a file in bytes; None where there is none."""

    def read_into(self, step: int, directory: str, name: str, offset: int, memory: memoryview) -> None:
        """Fill the memory with the bytes of a file from an offset on. May be called by several threads at once.

        Raises:
            CheckpointError: The file is missing, or ends before. The message is only the reason.
        """

    def discard(self, step: int, directory: str) -> None:
        """Remove the files of an attempt, that failed or was replaced. None that the manifest there names is touched.

        An attempt that is not there is no error.
        """

    def remove(self, step: int) -> None:
        """Remove all that is ours of a step, the manifest first: from then on it is no checkpoint any more.

        A step that is not there is no error.
        """


def step_name(step: int) -> str:
    """Give the name of the directory of a step: ``step-000000001234``."""
    return f"step-{step:012}"


def step_of(name: str) -> int | None:
    """Give the step whose directory has this name; None if it is not such a name."""
    match = _STEP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def path_in_step(directory: str, name: str) -> str:
    """Give the path of a file from its step's directory: ``5f3a9c01d2e4-0007/state.json``; format 1: ``state.json``.

    Raises:
        CheckpointError: No checkpoint of ours has such a file, whatever a manifest says.
    """
    if not is_file_name(name) or not (directory == "" or is_attempt_name(directory)):
        raise CheckpointError(f"{directory + '/' + name!r} is no path of a file of a checkpoint")
    return f"{directory}/{name}" if directory else name


def mentions(manifest: bytes, directory: str) -> bool:
    """Return whether a manifest, of whatever version and however damaged, names the directory of this attempt."""
    if directory == "":
        return b'"directory"' not in manifest  # format 1
    return f'"{directory}"'.encode() in manifest


def is_ours(name: str) -> bool:
    """Return whether a file beside a manifest, or in the directory of an attempt, is removed with it."""
    name = name.removesuffix(PARTIAL_SUFFIX)
    return name == MANIFEST_NAME or is_file_name(name)


def existing_manifest(store: Store, step: int) -> bytes | None:
    """Give the bytes of the manifest of a step; None also where there is what cannot be one."""
    try:
        return store.read_manifest(step)
    except StoreError:
        raise
    except CheckpointError:
        return None


def removed_beside(store: Store, step: int, names: Collection[str]) -> list[str]:
    """Name the files beside a manifest, which still stands, that are removed with it: those of format 1.

    Somebody may have laid tensors there. They are only taken for ours beside a state.json, which format 2 has not
    there, and under no manifest of format 2. It is the last: who is killed meanwhile is understood as well.

    Args:
        store: Where it is.
        step: The manifest's.
        names: The files there.
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
