"""Brings what the hosts write into one directory to one S3 prefix while they write it, as the platform does.

Again and again, what is new or changed on any host goes up. All hosts share the prefix without a suffix: the last to
write a name wins. Not imitated: AWS's ``*.sagemaker-uploading`` files beside an upload.
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
from estimators.local.engine.job_request import SyncedFolder
from estimators.local.engine.objects import explaining, upload
from estimators.local.engine.transfers import Transfers

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

_TRANSIENT = (".sagemaker-uploading", ".sagemaker-uploaded")
_TIMESTAMP_TICK = 20_000_000
"""Nanoseconds within which two writes may leave the same modification time."""

Signature = tuple[int, int, int]
"""What tells one state of a file from another: inode, size, modification time."""


class FolderSync:
    """The files of one output, in one attempt of a job.

    Args:
        s3: A client.
        folder: The directory, and the prefix that all hosts share.
        trees: Every host's /opt/ml.
        snapshot: A file, used to upload a state of a file that its program can't change meanwhile.
        seconds: The pause between two looks at the directories.
    """

    def __init__(
        self,
        s3: S3Client,
        folder: SyncedFolder,
        trees: Mapping[str, HostTree],
        *,
        snapshot: Path,
        seconds: float,
    ) -> None:
        self._s3 = s3
        self._uri = folder.uri
        self._trees = trees
        self._folder = PurePath(folder.path)
        self._what = folder.what
        self._snapshot = snapshot
        self._seconds = seconds
        # No lock: only the thread uses these, until `abandon` has joined it.
        self._known: dict[str, dict[str, Signature | None]] = {host: {} for host in trees}
        self._writer: dict[str, str] = {}
        self._transfers = Transfers(f"{self._what} upload failed")
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"uploads to {folder.uri}", daemon=True)

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
        except Exception:  # whatever it is: the next file must not be lost for this one
            logger.warning("files could not be copied to %s; will be tried again", self._uri, exc_info=True)

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
            with explaining(f"{self._what} upload failed", self._uri):
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
        """Do nothing: what a host has deleted stays in S3."""

    def _scan(self, tree: HostTree, unread: Callable[[OSError], None] = lambda _: None) -> dict[str, Signature]:
        """Return every file of a host's by its path in the folder."""
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
        """Return None: links are no files, as on AWS; the host's log says so."""
        tree.tell(link, "is not uploaded: it is a symbolic link, which is not followed")
        return None


def _signature(status: os.stat_result | None) -> Signature | None:
    """Return None if there is no file (any more)."""
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns)
