"""Watch whether the platform's agent copies a directory's checkpoints to S3, and copy late ones.

SageMaker's agent copies /opt/ml/checkpoints in its own time, and reports no failure. A checkpoint that has not arrived
is lost with the machine. So a thread looks for each checkpoint in S3, warns if one is late, and uploads it if
configured. Errors of S3 are logged and never reach the training.
"""

from __future__ import annotations

import logging
import mmap
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from smddp.checkpoint.format.manifest import MANIFEST_NAME, Manifest
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.store import CommitListener, Store, path_in_step
from smddp.errors import CheckpointError
from smddp.process.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 10.0  # seconds between two checks, at most
_FIRST_PAUSE = 0.05  # seconds between the first two looks of `settle`, which grow rarer
_MOST_PATIENCE = 15.0  # seconds that `settle` waits for the agent, at most
_LAST_LOOK_SECONDS = 2.0  # bound on the last look of `close`; after a failure, SIGKILL is near


@dataclass(kw_only=True, slots=True)
class _Expected:
    """A checkpoint that has not arrived yet."""

    step: int
    committed: bytes
    """The bytes of its manifest."""
    since: float
    missing: set[str]
    """Names of files absent at the last check, the manifest included."""
    count: int
    """The number of its files, the manifest included."""
    is_late: bool = False
    trouble: str = ""
    """The error of the last check or upload; empty if none."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


class UploadMonitor(CommitListener):
    """Watches in its own thread whether each checkpoint of a directory arrives in S3."""

    def __init__(
        self, source: DirectoryStore, target: Store, *, bound_seconds: float = 300.0, take_over: bool = False
    ) -> None:
        """Watch `source`, which the platform copies to `target`; the thread starts with the first checkpoint.

        A checkpoint is late after `bound_seconds`, which must be positive. With `take_over` late checkpoints are
        uploaded.
        """
        if not bound_seconds > 0:
            raise ValueError(f"bound_seconds is {bound_seconds}: checkpoints need some time to arrive")
        self._source = source
        self._target = target
        self._bound = bound_seconds
        self._takes_over = take_over
        self._expected: dict[int, _Expected] = {}  # by step, until the checkpoint arrives
        self._newest: _Expected | None = None
        # Guards `_expected`, `_newest` and the start of the thread. It is never taken together with another lock, nor
        # during a request to S3, so it is free within microseconds.
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble_said = float("-inf")

    def __str__(self) -> str:
        """Return the place that the checkpoints are to arrive in."""
        return str(self._target)

    def path(self, step: int) -> str:
        """Return the location of a checkpoint in that place."""
        return self._target.path(step)

    def expect(self, step: int, manifest: bytes) -> None:
        """Start to watch a committed checkpoint. Returns at once."""
        files = {*Manifest.from_json(manifest).files, MANIFEST_NAME}
        expected = _Expected(step=step, committed=manifest, since=time.monotonic(), missing=files, count=len(files))
        with self._lock:
            self._expected[step] = self._newest = expected
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="smddp-upload-monitor", daemon=True)
                self._thread.start()

    def settle(self, timeout: float) -> bool:
        """Wait shortly for the agent to copy the newest checkpoint, then upload it; return whether S3 has all of it.

        After `timeout` seconds the upload is abandoned, and the missing files are logged.
        """
        with self._lock:
            newest = self._newest
            if newest is None or self._expected.get(newest.step) is not newest:
                return True
        settled = threading.Event()

        def work() -> None:
            if self._quietly(newest, partial(self._bring, newest, patience=min(timeout / 3, _MOST_PATIENCE))):
                settled.set()

        # S3's own timeouts may exceed `timeout`, so a daemon thread works, and is abandoned when the time is up.
        thread = threading.Thread(target=work, name="smddp-settle", daemon=True)
        thread.start()
        with Heartbeat(f"waiting until {self._target.path(newest.step)} is in S3, at most {timeout:.0f} s"):
            thread.join(timeout)
        if not settled.is_set():
            logger.error("%s: the job ends without it being in S3", self._lateness(newest))
        return settled.is_set()

    def close(self) -> None:
        """Look once more and stop watching, after `_LAST_LOOK_SECONDS` at most, and log what has not arrived."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_LAST_LOOK_SECONDS)
        with self._lock:
            left = list(self._expected.values())
        for expected in left:
            logger.warning("%s; this process ends before it has seen them arrive", self._lateness(expected))

    def _watch(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(min(_LONGEST_PAUSE, self._bound / 10))  # `close` tells what this look misses
            with self._lock:
                pending = list(self._expected.values())
            for expected in pending:
                has_arrived = self._quietly(expected, partial(self._has_arrived, expected))
                if not has_arrived and expected.seconds > self._bound and not self._closing.is_set():
                    self._be_late(expected)

    def _has_arrived(self, expected: _Expected) -> bool:
        """Look for the missing files, the manifest first: while it is absent, one request per check is enough."""
        if self._source.read_manifest(expected.step) != expected.committed:
            self._forget(expected)  # removed or replaced in the directory: not needed in S3
            return True
        if MANIFEST_NAME in expected.missing and missing_files(self._target, expected.committed, among={MANIFEST_NAME}):
            return False
        expected.missing = set(missing_files(self._target, expected.committed, among=expected.missing))
        if expected.missing:
            return False
        self._forget(expected)
        if expected.is_late:
            logger.info("%s arrived after %.0f s", self._target.path(expected.step), expected.seconds)
        return True

    def _be_late(self, expected: _Expected) -> None:
        if not expected.is_late:
            expected.is_late = True
            remedy = "uploading it from here" if self._takes_over else 'smddp can: CheckpointPolicy(sync="upload")'
            logger.warning(
                "%s. If this machine is lost now, so is the checkpoint. The platform has not copied it; see whether "
                "the job's role may write there (s3:PutObject, s3:ListBucket); %s",
                self._lateness(expected),
                remedy,
            )
        if self._takes_over:
            self._quietly(expected, partial(self._upload, expected))

    def _bring(self, expected: _Expected, *, patience: float) -> bool:
        until, pause = time.monotonic() + patience, _FIRST_PAUSE
        while time.monotonic() < until:
            if self._quietly(expected, partial(self._has_arrived, expected)):
                return True
            time.sleep(min(pause, patience / 10))
            pause = min(2 * pause, 1.0)
        return self._upload(expected)

    def _upload(self, expected: _Expected) -> bool:
        copy_checkpoint(self._source, self._target, expected.committed)
        return self._has_arrived(expected)

    def _forget(self, expected: _Expected) -> None:
        with self._lock:
            if self._expected.get(expected.step) is expected:
                del self._expected[expected.step]

    def _lateness(self, expected: _Expected) -> str:
        trouble = f" ({expected.trouble})" if expected.trouble else ""
        return (
            f"{self._target.path(expected.step)} has not arrived {expected.seconds:.0f} s after it was saved in "
            f"{self._source}: {len(expected.missing)} of its {expected.count} files are not there{trouble}"
        )

    def _quietly(self, expected: _Expected, ask: Callable[[], bool]) -> bool:
        """Call `ask`; on an error return False, and log at most one warning per `bound_seconds`."""
        before = expected.trouble
        try:
            found = ask()
        except (CheckpointError, OSError, ValueError) as error:  # ValueError: a file has become empty
            expected.trouble = str(error)
            if time.monotonic() - self._trouble_said > self._bound:
                self._trouble_said = time.monotonic()
                logger.warning("could not see whether the checkpoints of %s arrive in S3: %s", self._source, error)
            return False
        # Only after the answer, for `close` may log the trouble while this request runs; and only if no other thread
        # has noted another one.
        if expected.trouble == before:
            expected.trouble = ""
        return found


def missing_files(store: Store, committed: bytes, *, among: Collection[str]) -> list[str]:
    """Return the names in `among` that the store lacks, or stores in another size; one request for each name.

    `committed` is the checkpoint's manifest, whose own name may be in `among`.
    """
    manifest = Manifest.from_json(committed)
    step, directory = manifest.step, manifest.directory
    missing = [
        name
        for name, record in manifest.files.items()
        if name in among and store.size(step, directory, name) != record.size
    ]
    if MANIFEST_NAME in among and store.read_manifest(step) != committed:
        missing.append(MANIFEST_NAME)
    return missing


def copy_checkpoint(source: DirectoryStore, target: Store, committed: bytes) -> None:
    """Copy the files that the target lacks, then commit `committed` in place of the target's manifest of this step.

    Raise CheckpointError or OSError if the source no longer has a file, or the target refuses it.
    """
    manifest = Manifest.from_json(committed)
    step, directory = manifest.step, manifest.directory
    for name in missing_files(target, committed, among=manifest.files):
        path = Path(source.path(step)) / path_in_step(directory, name)
        if source.size(step, directory, name) != manifest.files[name].size:
            raise CheckpointError(f"{path} is not as it was written")
        target.write(step, directory, name, _content(path))
    target.commit(step, directory, committed, replacing=target.read_manifest(step))


def _content(path: Path) -> list[memoryview]:
    """Map a file into memory. The mapping, and a file removed meanwhile, last until the last view of it is gone."""
    if path.stat().st_size == 0:
        return []
    with path.open("rb") as file:
        return [memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))]
