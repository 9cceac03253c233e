"""Many files on their way to S3: one that can't be copied holds up no other, and is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import PurePath

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.objects import BadKeyError, FileUri, S3Uri, explaining, require_key

logger = logging.getLogger(__name__)

_MOST_IN_A_ROW = 3
"""So many failures without a success between them, and it is S3 that fails, or the disk, and not the files."""


class Transfers:
    """Copies files one after the other, and remembers which could not be copied.

    Args:
        what: What FailureReason calls a failure, such as ``Checkpoint upload failed``.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures: dict[tuple[HostTree, PurePath], FailedJobError] = {}
        self._in_a_row = 0

    def copy(self, tree: HostTree, path: PurePath, uri: S3Uri | FileUri, put: Callable[[], None]) -> None:
        """Copy one file; that it fails is written into its host's log, once for each file.

        Args:
            tree: The host's /opt/ml.
            path: The file in it.
            uri: What it becomes.
            put: Copies it.

        Raises:
            FailedJobError: If files fail one after the other: the next ones would, too.
        """
        try:
            with explaining(self._what, uri):
                require_key(uri)
                put()
        except Exception as error:  # of whatever kind: the next file must be copied, too
            if not isinstance(error, FailedJobError):
                logger.warning("%s could not be copied, by a defect of the platform", path, exc_info=True)
            self._note(tree, path, error)
        else:
            self._in_a_row = 0
            self._failures.pop((tree, path), None)

    def has_failed(self, tree: HostTree, path: PurePath) -> bool:
        """Return whether a file could not be copied when that was tried last."""
        return (tree, path) in self._failures

    def forget_gone(self, present: Iterable[tuple[HostTree, PurePath]]) -> None:
        """Forget the failures of files that are not there any more."""
        if self._failures:
            self._failures = {file: self._failures[file] for file in self._failures.keys() & set(present)}

    @property
    def delayed(self) -> bool:
        """Whether there is a file that may be copied yet: S3, or the disk, failed and not the file."""
        return not all(map(_is_its_own_fault, self._failures.values()))

    def check(self) -> None:
        """Return if there is no file that could not be copied.

        Raises:
            FailedJobError: If there is one, with its reason.
        """
        if self._failures:
            first, more = next(iter(self._failures.values())), len(self._failures) - 1
            raise FailedJobError(f"{first}" + (f"; and {more} more files could not be copied" if more else ""))

    def _note(self, tree: HostTree, path: PurePath, error: Exception) -> None:
        failure = error if isinstance(error, FailedJobError) else FailedJobError(f"InternalServerError: {error!r}")
        self._failures[tree, path] = failure
        tree.tell(path, f"could not be copied: {failure}")
        if _is_its_own_fault(failure):
            return
        self._in_a_row += 1
        if self._in_a_row == _MOST_IN_A_ROW:
            self._in_a_row = 0
            raise failure from error.__cause__


def _is_its_own_fault(error: FailedJobError) -> bool:
    """Return whether a file can't be copied for what it is."""
    return isinstance(error.__cause__, BadKeyError | PermissionError)
