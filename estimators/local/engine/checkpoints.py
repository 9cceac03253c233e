"""Keeps the hosts' checkpoint directories and one S3 prefix in step, as the platform does.

At the start every host gets all of the prefix. Then, again and again, what is new or changed on any host goes up, and
what a host has deleted is deleted in S3. All hosts share the prefix without a suffix: the last to write a name wins.
What comes to S3 meanwhile is not brought down. Not imitated: AWS's ``*.sagemaker-uploading`` files beside an upload.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from estimators.hosts.opt_ml_tree import HostTree, LeadsOutError
from estimators.local.engine.channels import Fetch, fetch_all, prefix_objects, relative_path
from estimators.local.engine.objects import S3Uri, explaining, upload
from estimators.local.engine.transfers import Transfers

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

_TRANSIENT = (".sagemaker-uploading", ".sagemaker-uploaded")
_OWNER_SUFFIX = ".smddp-owner"
"""How the file is called that says which run saves there: it is no checkpoint."""
_TIMESTAMP_TICK = 20_000_000
"""Nanoseconds within which two writes may leave the same modification time."""

Signature = tuple[int, int, int]
"""What tells one state of a file from another: inode, size, modification time."""


class CheckpointSync:
    """The checkpoints of one attempt of a job.

    Args:
        s3: A client.
        uri: The shared prefix.
        trees: Every host's /opt/ml.
        folder: The checkpoint directory in it.
        snapshot: A file, used to upload a state of a file that its program can't change meanwhile.
        seconds: The pause between two looks at the directories.
    """

    def __init__(
        self,
        s3: S3Client,
        uri: S3Uri,
        trees: Mapping[str, HostTree],
        folder: PurePath,
        *,
        snapshot: Path,
        seconds: float,
    ) -> None:
        self._s3 = s3
        self._uri = uri
        self._trees = trees
        self._folder = folder
        self._snapshot = snapshot
        self._seconds = seconds
        # No lock: only the thread uses these, until `abandon` has joined it.
        self._known: dict[str, dict[str, Signature | None]] = {host: {} for host in trees}
        self._writer: dict[str, str] = {}
        self._transfers = Transfers("Checkpoint upload failed")
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"checkpoints {uri}", daemon=True)

    def download(self, *, cancelled: Callable[[], bool]) -> None:
        """Bring all of the prefix to every host.

        Raises:
            FailedJobError: If S3 refuses.
            CancelledError: If ``cancelled`` said so.
        """
        with explaining("Checkpoint download failed", self._uri):
            objects = prefix_objects(self._s3, self._uri)
        fetches = []
        for name, uri in objects.items():
            path = relative_path(name)
            if path is None:
                logger.warning("%s is left out: its key leaves the checkpoint directory", uri)
                continue
            fetches.append(
                Fetch(uri=uri, paths=tuple(tree.root / self._folder / path for tree in self._trees.values()))
            )
        fetch_all(self._s3, fetches, "Checkpoint download failed", cancelled=cancelled)
        for host, tree in self._trees.items():
            self._known[host] = {**self._scan(tree)}

    @property
    def progressed(self) -> bool:
        """Whether a host has written anything that was brought to S3, and may be a checkpoint."""
        return any(not name.endswith(_OWNER_SUFFIX) for name in self._writer)

    def start(self) -> None:
        """Go on in the background."""
        self._thread.start()

    def finish(self) -> None:
        """Stop, and bring S3 to the directories' last state.

        Raises:
            FailedJobError: If S3 refuses, or a file can't be copied; all others are.
        """
        self.abandon()
        self._synchronise(last=True)
        self._transfers.check()

    def abandon(self) -> None:
        """Stop as it is."""
        self._finished.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._finished.wait(self._seconds):
            self._try_to_synchronise()

    def _try_to_synchronise(self) -> None:
        try:
            self._synchronise()
        except Exception:  # whatever it is: the next checkpoint must not be lost for this one
            logger.warning("checkpoints could not be copied to %s; will be tried again", self._uri, exc_info=True)

    def _synchronise(self, *, last: bool = False) -> None:
        """Look at all directories once: first what is new, in the order it was written, then what is gone.

        What could not be copied before comes last: what S3 refuses again and again holds up nothing.

        Args:
            last: No host runs any more: what can't be read now never can.
        """
        looked = time.time_ns()
        unread: dict[str, list[OSError]] = {host: [] for host in self._trees}
        found = {host: self._scan(tree, unread[host].append) for host, tree in self._trees.items()}
        self._transfers.forget_gone(
            (self._trees[host], self._folder / name) for host, files in found.items() for name in files
        )
        changed = [
            (self._transfers.has_failed(self._trees[host], self._folder / name), signature[2], host, name, signature)
            for host, files in found.items()
            for name, signature in files.items()
            if self._known[host].get(name) != signature
        ]
        # Order: by the time of writing, so that a checkpoint's manifest is in S3 only after the files that it names.
        for _, _, host, name, signature in sorted(changed):
            if self._finished.is_set() and not last:
                return  # who waits for this thread needs no more of it
            put = functools.partial(self._put, host, name, signature, looked=looked, last=last)
            self._transfers.copy(self._trees[host], self._folder / name, self._uri.below(name), put)
        self._snapshot.unlink(missing_ok=True)
        if not self._transfers.delayed:  # never the old before the new is there
            # What lies in a directory that can't be read is not gone.
            self._delete_what_is_gone({host: files for host, files in found.items() if not unread[host]})
        if last and (errors := [error for each in unread.values() for error in each]):
            with explaining("Checkpoint upload failed", self._uri):
                raise errors[0]

    def _put(self, host: str, name: str, signature: Signature, *, looked: int, last: bool) -> None:
        """Copy a file to S3, in a state that its program can't change meanwhile."""
        tree, path = self._trees[host], self._folder / name
        try:
            with tree.reading(path) as file:
                if not last:  # when no program runs, none changes it; and a full disk is no matter then
                    shutil.copyfile(file, self._snapshot)
                settled = looked - signature[2] > _TIMESTAMP_TICK and signature == _signature(tree.status(path))
                upload(self._s3, file if last else self._snapshot, self._uri.below(name))
        except (FileNotFoundError, LeadsOutError):
            return  # deleted since; the next look sees that
        except PermissionError:  # a container's root may write for itself alone; it is ours when the hosts end
            if last:
                raise
            tree.tell(path, "is not readable for this user yet; it is copied when the job's hosts end")
            return
        self._writer[name] = host
        self._known[host][name] = signature if settled else None

    def _delete_what_is_gone(self, found: Mapping[str, Mapping[str, Signature]]) -> None:
        """Delete in S3 what the hosts have deleted."""
        for host, files in found.items():
            for name in self._known[host].keys() - files.keys():
                if self._writer.get(name, host) == host:
                    target = self._uri.below(name)
                    with explaining("Checkpoint upload failed", target):
                        self._s3.delete_object(Bucket=target.bucket, Key=target.key)
                del self._known[host][name]

    def _scan(self, tree: HostTree, unread: Callable[[OSError], None] = lambda _: None) -> dict[str, Signature]:
        """Return every file of a host's by its path in the folder; a link to a file is one."""
        files = {}
        for name, status in tree.entries(self._folder, unread=unread):
            if name.endswith(_TRANSIENT):
                continue
            target = tree.status(self._folder / name) if stat.S_ISLNK(status.st_mode) else status
            signature = _signature(target)
            if signature is not None:
                files[name] = signature
        return files


def _signature(status: os.stat_result | None) -> Signature | None:
    """Return None if there is no file (any more)."""
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns)
