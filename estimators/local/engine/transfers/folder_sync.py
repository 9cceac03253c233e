"""Copies one directory of all hosts to one S3 prefix while the hosts write to it, as SageMaker does.

Repeated passes upload the new and changed files of each host. All hosts share the prefix without a suffix: the last
writer of a name wins. Not imitated: AWS's ``*.sagemaker-uploading`` files beside an upload. `CheckpointSync` also
downloads the prefix first, and deletes in S3 what the hosts delete.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING

from estimators.hosts.opt_ml_tree import HostTree, LeadsOutError
from estimators.local.engine.transfers.channels import Fetch, fetch_all, prefix_objects, relative_path
from estimators.local.engine.transfers.objects import S3Uri, Transfers, explaining, upload
from smddp.display_text import shown_name

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


logger = logging.getLogger(__name__)

_TRANSIENT = (".sagemaker-uploading", ".sagemaker-uploaded")
_LONGEST_PAUSE = 1.0  # seconds between two passes, unless more are asked for
_TIMESTAMP_TICK = 20_000_000
"""Nanoseconds within which two writes may leave the same modification time."""
_OWNER_SUFFIX = ".smddp-owner"
"""Suffix of the owner file, which names the run that saves in a directory: it is not a checkpoint."""

Signature = tuple[int, int, int]
"""Identifies one state of a file: inode, size in bytes, modification time in nanoseconds."""


@dataclass(kw_only=True, slots=True, frozen=True)
class SyncedFolder:
    """A directory of every host that is copied to S3."""

    what: str
    """Its name in a FailureReason."""
    uri: S3Uri
    path: PurePosixPath
    """The directory, relative to /opt/ml."""


class FolderSync:
    """The files of one synced folder in one attempt of a job."""

    def __init__(
        self,
        s3: S3Client,
        folder: SyncedFolder,
        trees: Mapping[str, HostTree],
        *,
        snapshot: Path,  # a scratch file: each upload is from a copy, which the program can't change
        seconds: float,  # between two passes, at least
    ) -> None:
        self._s3 = s3
        self._uri = folder.uri
        self._trees = trees
        self._folder = PurePath(folder.path)
        self._what = folder.what
        self._snapshot = snapshot
        self._seconds = seconds
        # No lock: from `start` until `abandon` has joined the thread, only the thread uses these.
        self._known: dict[str, dict[str, Signature | None]] = {host: {} for host in trees}
        self._writer: dict[str, str] = {}
        self._transfers = Transfers(f"{self._what} upload failed")
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"uploads to {folder.uri}", daemon=True)

    def start(self) -> None:
        """Begin the passes in the background."""
        self._thread.start()

    def finish(self) -> None:
        """Stop the passes, and bring S3 to the directories' last state.

        Raise FailedJobError if S3 refuses or a file can't be copied; the other files are copied all the same.
        """
        self.abandon()
        self._synchronise(last=True)
        self._transfers.check()

    def abandon(self) -> None:
        """Stop the passes, and wait for the transfers in progress.

        Bound: one transfer's retries, which are those of the S3 client; the next transfer does not begin.
        """
        self._finished.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        scanned = took = 0.0
        while not self._finished.wait(self.pause_after(scanned, took)):
            began = time.monotonic()
            scanned = self._try_to_synchronise()
            took = time.monotonic() - began

    def pause_after(self, scanned: float, took: float) -> float:
        """Return the seconds until the next pass: few, because a program may wait for its files to be in S3.

        Scans take a tenth of the time at most, and whole passes half of it: a file that its program still writes is
        copied in each. A longer pause than a second is only what was asked for.
        """
        return max(self._seconds, min(_LONGEST_PAUSE, max(10 * scanned, took)))

    def _try_to_synchronise(self) -> float:
        """Make one pass, and return the seconds of its scan; infinity if it failed."""
        try:
            return self._synchronise()
        except Exception:  # of any kind: the thread must go on, for the other files
            logger.warning("files could not be copied to %s; will be tried again", self._uri, exc_info=True)
            return math.inf

    def _synchronise(self, *, last: bool = False) -> float:
        """Make one pass: copy new and changed files, then delete what is gone. Return the seconds of the scan.

        On the last pass no host runs any more, so an unreadable directory is an error.
        """
        looked, began = time.time_ns(), time.monotonic()
        unread: dict[str, list[OSError]] = {host: [] for host in self._trees}
        found = {host: self._scan(tree, unread[host].append) for host, tree in self._trees.items()}
        scanned = time.monotonic() - began
        self._transfers.forget_gone(
            (self._trees[host], self._folder / name) for host, files in found.items() for name in files
        )
        changed = [
            (self._transfers.has_failed(self._trees[host], self._folder / name), signature[2], host, name, signature)
            for host, files in found.items()
            for name, signature in files.items()
            if self._known[host].get(name) != signature
        ]
        # 1. By time of writing: a checkpoint's manifest is in S3 only after the files that it names.
        # 2. Files that failed before come last: a file that S3 always refuses delays no other.
        for _, _, host, name, signature in sorted(changed):
            if self._finished.is_set() and not last:
                return scanned  # `abandon` waits for this thread
            put = functools.partial(self._put, host, name, signature, looked=looked, last=last)
            self._transfers.copy(self._trees[host], self._folder / name, self._uri.below(name), put)
        self._snapshot.unlink(missing_ok=True)
        # 3. Deletions come last, and only if no copy is outstanding: the old is deleted after the new is in S3.
        if not self._transfers.delayed:
            # Files in a directory that can't be read are not gone.
            self._delete_what_is_gone({host: files for host, files in found.items() if not unread[host]})
        if last and (errors := [error for each in unread.values() for error in each]):
            with explaining(f"{self._what} upload failed", self._uri):
                raise errors[0]
        return scanned

    def _put(self, host: str, name: str, signature: Signature, *, looked: int, last: bool) -> None:
        """Upload one file, from a copy that its program can't change meanwhile."""
        tree, path = self._trees[host], self._folder / name
        try:
            with tree.reading(path) as file:
                if not last:  # no copy on the last pass: no program runs, and the disk may be full
                    shutil.copyfile(file, self._snapshot)
                # A file that changed since the scan, or just before it, is copied again on the next pass.
                settled = looked - signature[2] > _TIMESTAMP_TICK and signature == _signature(tree.status(path))
                upload(self._s3, file if last else self._snapshot, self._uri.below(name))
        except (FileNotFoundError, LeadsOutError):
            return  # deleted since the scan; the next pass sees it
        except PermissionError:  # of a container's root; this user owns it once the hosts have ended
            if last:
                raise
            tree.tell(path, "is not readable for this user yet; it is copied when the job's hosts end")
            return
        self._writer[name] = host
        self._known[host][name] = signature if settled else None

    def _delete_what_is_gone(self, found: Mapping[str, Mapping[str, Signature]]) -> None:
        """Do nothing: files that a host deletes stay in S3."""

    def _scan(self, tree: HostTree, unread: Callable[[OSError], None] = lambda _: None) -> dict[str, Signature]:
        """Return the signature of each file of a host by its path in the folder."""
        files = {}
        for name, status in tree.entries(self._folder, unread=unread):
            if name.endswith(_TRANSIENT):
                continue
            target = self._target(tree, self._folder / name) if stat.S_ISLNK(status.st_mode) else status
            signature = _signature(target)
            if signature is not None:
                files[name] = signature
        return files

    def _target(self, tree: HostTree, link: PurePath) -> os.stat_result | None:
        """Return None: symbolic links are not followed, as on AWS; the host's log says so."""
        tree.tell(link, "is not uploaded: it is a symbolic link, which is not followed")
        return None


def _signature(status: os.stat_result | None) -> Signature | None:
    """Return a regular file's signature, or None if it is absent."""
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns)


class CheckpointSync(FolderSync):
    """The checkpoints of one attempt of a job.

    At the start every host gets the whole prefix. Then new and changed files of any host are uploaded, and files that a
    host deletes are deleted in S3. Objects that others add to S3 meanwhile are not downloaded.
    """

    def download(self, *, cancelled: Callable[[], bool]) -> None:
        """Download the whole prefix to every host, before `start`.

        Raise FailedJobError if S3 refuses, CancelledError once ``cancelled`` returns True.
        """
        with explaining(f"{self._what} download failed", self._uri):
            objects = prefix_objects(self._s3, self._uri)
        fetches = []
        for name, uri in objects.items():
            path = relative_path(name)
            if path is None:
                logger.warning("%s is left out: its key leaves the checkpoint directory", shown_name(str(uri)))
                continue
            fetches.append(
                Fetch(uri=uri, paths=tuple(tree.root / self._folder / path for tree in self._trees.values()))
            )
        fetch_all(self._s3, fetches, f"{self._what} download failed", cancelled=cancelled)
        for host, tree in self._trees.items():
            self._known[host] = {**self._scan(tree)}

    @property
    def progressed(self) -> bool:
        """Whether a file that may be a checkpoint was uploaded in this attempt."""
        return any(not name.endswith(_OWNER_SUFFIX) for name in self._writer)

    def _delete_what_is_gone(self, found: Mapping[str, Mapping[str, Signature]]) -> None:
        """Delete in S3 the files that a host deleted, unless another host was the last to write the name."""
        for host, files in found.items():
            for name in self._known[host].keys() - files.keys():
                if self._writer.get(name, host) == host:
                    target = self._uri.below(name)
                    with explaining(f"{self._what} upload failed", target):
                        self._s3.delete_object(Bucket=target.bucket, Key=target.key)
                del self._known[host][name]

    def _target(self, tree: HostTree, link: PurePath) -> os.stat_result | None:
        """Return the status of the link's target: a link to a file is uploaded as a file."""
        return tree.status(link)
