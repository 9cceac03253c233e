"""Writes the job's outcome for the platform: ``output/failure`` with the reason, or ``output/success``.

A failure that a rank wrote itself is the root cause and stays. ``smddp.job.failure_report`` composes all reasons.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from smddp.job import failure_report

logger = logging.getLogger(__name__)


def forget_outcome(output_dir: Path) -> None:
    """Remove the outcome of an earlier attempt in the same directory."""
    for name in ("failure", "success"):
        (output_dir / name).unlink(missing_ok=True)


def report_success(output_dir: Path) -> None:
    """Write an empty ``success``, and remove a failure that a restart overcame."""
    path = output_dir / "success"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        (output_dir / "failure").unlink(missing_ok=True)
        path.touch()
    except OSError as error:  # the exit code shows the success, too
        logger.warning("The job succeeded, but %s can't be written: %s.", path, _cause(error))


def report_failure(output_dir: Path, reason: str) -> None:
    """Write ``failure``, unless a rank has written its own, more precise reason."""
    path = output_dir / "failure"
    if path.exists():
        logger.error("The job failed; its own reason is in %s.", path)
        return
    reason = failure_report.within_limit(reason)
    logger.error("The job failed: %s", reason)
    try:
        failure_report.record(output_dir, reason)
    except OSError as error:
        # The platform then shows the end of the log instead, so log the error itself last, without its traceback.
        logger.error("%s can't be written: %s. The job failed: %s", path, _cause(error), reason.partition("\n")[0])


def is_full_disk(error: BaseException) -> bool:
    """Return whether an error means a full disk, or an exhausted quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _cause(error: OSError) -> str:
    """Return a file system error's meaning for the reader of a log."""
    return f"the disk is full ({error})" if is_full_disk(error) else str(error)
