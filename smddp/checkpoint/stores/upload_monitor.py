"""Whether the checkpoints of a directory arrive in S3, where the platform's agent copies them to, as it says.

SageMaker's agent copies /opt/ml/checkpoints in its own time and says nothing when it cannot. A checkpoint that has
not arrived is lost with the machine, so each one is looked for in S3; one that is late is said so aloud, and uploaded
from here if that is wanted. Nothing that S3 does reaches the training.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.format.names import MANIFEST_NAME
from smddp.checkpoint.stores.copying import copy_checkpoint, missing_files
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.store import Store
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 10.0  # seconds between two looks
_MOST_PATIENCE = 15.0  # seconds that `settle` leaves to the agent


@dataclass(kw_only=True, slots=True)
class _Expected:
    """A checkpoint on its way."""

    step: int
    committed: bytes
    """Its manifest."""
    since: float
    missing: set[str]
    """Files that were not there when they were last looked for, the manifest among them."""
    count: int
    """Of all its files."""
    is_late: bool = False
    trouble: str = ""
    """Why it could not be looked for, or not be uploaded, the last time."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


class UploadMonitor:
    """Watches, in a thread of its own, the way of each checkpoint from a directory to S3."""

    def __init__(
        self, source: DirectoryStore, target: Store, *, bound_seconds: float = 300.0, take_over: bool = False
    ) -> None:
        """Begin to watch with the first checkpoint.

        Args:
            source: The directory.
            target: Where the platform copies it to.
            bound_seconds: After how long a checkpoint that has not arrived is late.
            take_over: Upload those that are late, and do not only warn.

        Raises:
            ValueError: The bound is not positive.
        """
        if not bound_seconds > 0:
            raise ValueError(f"bound_seconds is {bound_seconds}: checkpoints need some time to arrive")
        self._source = source
        self._target = target
        self._bound = bound_seconds
        self._takes_over = take_over
        self._expected: dict[int, _Expected] = {}  # by step, until they have arrived
        self._newest: _Expected | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble_said = float("-inf")

    def expect(self, step: int, manifest: bytes) -> None:
        """Take note of a checkpoint that was committed in the directory. Returns at once."""
        files = {*Manifest.from_json(manifest).files, MANIFEST_NAME}
        expected = _Expected(step=step, committed=manifest, since=time.monotonic(), missing=files, count=len(files))
        with self._lock:
            self._expected[step] = self._newest = expected
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="smddp-upload-monitor", daemon=True)
                self._thread.start()

    def settle(self, timeout: float) -> bool:
        """See to it that the newest checkpoint is in S3: leave it to the agent for a moment, then upload it.

        Args:
            timeout: Seconds it may take; what is under way then is left.

        Returns:
            Whether it is there as a whole. What is missing has been logged otherwise.
        """
        with self._lock:
            newest = self._newest
            if newest is None or self._expected.get(newest.step) is not newest:
                return True
        settled = threading.Event()

        def work() -> None:
            if self._quietly(newest, partial(self._bring, newest, patience=min(timeout / 3, _MOST_PATIENCE))):
                settled.set()

        # S3 may take longer to refuse than there is time: then the thread is left behind.
        thread = threading.Thread(target=work, name="smddp-settle", daemon=True)
        thread.start()
        thread.join(timeout)
        if not settled.is_set():
            logger.error("%s: the job ends without it being in S3", self._lateness(newest))
        return settled.is_set()

    def close(self) -> None:
        """Watch no longer, and say which checkpoints were not seen to arrive."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)
        with self._lock:
            left = list(self._expected.values())
        for expected in left:
            logger.warning("%s; it is not watched any longer", self._lateness(expected))

    def _watch(self) -> None:
        while not self._closing.wait(min(_LONGEST_PAUSE, self._bound / 10)):
            with self._lock:
                pending = list(self._expected.values())
            for expected in pending:
                has_arrived = self._quietly(expected, partial(self._has_arrived, expected))
                if not has_arrived and expected.seconds > self._bound and not self._closing.is_set():
                    self._be_late(expected)

    def _has_arrived(self, expected: _Expected) -> bool:
        """Look for what was missing; the manifest first: the agent has copied nothing as long as it is not there."""
        if self._source.read_manifest(expected.step) != expected.committed:
            self._forget(expected)  # removed, because newer ones are there, or replaced: nobody needs it in S3
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
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if self._quietly(expected, partial(self._has_arrived, expected)):
                return True
            time.sleep(min(1.0, patience / 10))
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
        """Ask S3; that it fails is no reason to stop training, and one to say so once in a while."""
        expected.trouble = ""
        try:
            return ask()
        except (CheckpointError, OSError) as error:
            expected.trouble = str(error)
            if time.monotonic() - self._trouble_said > self._bound:
                self._trouble_said = time.monotonic()
                logger.warning("could not see whether the checkpoints of %s arrive in S3: %s", self._source, error)
            return False
