"""Keeps the hosts' checkpoint directories and one S3 prefix in step, as SageMaker does.

At the start every host gets the whole prefix. Then new and changed files of any host are uploaded, and files that a
host deletes are deleted in S3. Objects that others add to S3 meanwhile are not downloaded.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import PurePath

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.channels import Fetch, fetch_all, prefix_objects, relative_path
from estimators.local.engine.folder_sync import FolderSync, Signature
from estimators.local.engine.objects import explaining
from smddp.process.shown_text import shown_name

logger = logging.getLogger(__name__)

_OWNER_SUFFIX = ".smddp-owner"
"""Suffix of the owner file, which names the run that saves in a directory: it is no checkpoint."""


class CheckpointSync(FolderSync):
    """The checkpoints of one attempt of a job; the arguments are `FolderSync`'s."""

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
