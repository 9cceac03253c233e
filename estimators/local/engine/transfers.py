"""Copies many files to S3: a file that can't be copied delays no other, and is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import PurePath

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.objects import BadKeyError, FileUri, S3Uri, explaining, require_key

logger = logging.getLogger(__name__)

_MOST_IN_A_ROW = 3
"""After so many failures in a row, S3 or the disk is taken for the cause, not the files."""


class Transfers:
    """Copies files one after the other, and remembers the failures; ``what`` is their name in FailureReason."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures: dict[tuple[HostTree, PurePath], FailedJobError] = {}
        self._in_a_row = 0

    def copy(self, tree: HostTree, path: PurePath, uri: S3Uri | FileUri, put: Callable[[], None]) -> None:
        """Copy one file by ``put``; write a failure into its host's log, once for each file.

        Raise FailedJobError after `_MOST_IN_A_ROW` failures in a row: the next files would fail, too.
        """
        try:
            with explaining(self._what, uri):
                require_key(uri)
                put()
        except Exception as error:  # of any kind: the next file must be copied, too
            if not isinstance(error, FailedJobError):
                logger.warning("%s could not be copied, by a defect of the platform", path, exc_info=True)
            self._note(tree, path, error)
        else:
            self._in_a_row = 0
            self._failures.pop((tree, path), None)

    def has_failed(self, tree: HostTree, path: PurePath) -> bool:
        """Return whether the last copy of a file failed."""
        return (tree, path) in self._failures

    def forget_gone(self, present: Iterable[tuple[HostTree, PurePath]]) -> None:
        """Forget the failures of files that are gone."""
        if self._failures:
            self._failures = {file: self._failures[file] for file in self._failures.keys() & set(present)}

    @property
    def delayed(self) -> bool:
        """Whether a failed file may be copied later: S3 or the disk failed, not the file."""
        return not all(map(_is_its_own_fault, self._failures.values()))

    def check(self) -> None:
        """Raise FailedJobError with the first reason if the last copy of any file failed."""
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
    """Return whether the file itself is the cause: its name or its permissions."""
    return isinstance(error.__cause__, BadKeyError | PermissionError)
