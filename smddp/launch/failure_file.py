"""Writes ``output/failure`` for launchers, after a rank was killed or a host was lost.

A report that a rank wrote itself is more precise, and stays.
"""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

from smddp.cluster import without_run_variables
from smddp.errors import DistributedError
from smddp.job import failure_report

logger = logging.getLogger(__name__)


class FailureFile:
    """The job's failure file on this host, without earlier content. Does nothing if there is no output directory."""

    def __init__(self) -> None:
        self._output_dir = _output_dir()
        self._earlier = self._find()

    def read(self) -> str | None:
        """Return a report that a rank has written since; None if absent."""
        if self._output_dir is None or self._find() in (None, self._earlier):
            return None
        try:
            return failure_report.read(self._output_dir / "failure")
        except FileNotFoundError:  # hosts on one machine share the file
            return None

    def record(self, report: str) -> None:
        """Write a report, unless a rank has written one."""
        if self._output_dir is not None and self.read() is None:
            _record(self._output_dir, report)

    def forget(self) -> None:
        """Remove the report, because the job continues."""
        if self._output_dir is not None:
            (self._output_dir / "failure").unlink(missing_ok=True)

    def _find(self) -> tuple[int, int] | None:
        return None if self._output_dir is None else failure_report.find(self._output_dir)


def tell_failure(error: DistributedError) -> None:
    """Log what happened to another host, and write it as the job's reason: the ranks only know that they lost peers."""
    logger.error("%s", error)
    if (output_dir := _output_dir()) is not None:
        _record(output_dir, str(error))


def host_name() -> str:
    """Return this host's name in the job."""
    return without_run_variables(os.environ).get("SM_CURRENT_HOST") or socket.gethostname()


def _output_dir() -> Path | None:
    environ = without_run_variables(os.environ)
    run_dir = environ.get("SMDDP_RUN_DIR")
    output_dir = environ.get("SM_OUTPUT_DIR") or (f"{run_dir}/output" if run_dir else None)
    return None if output_dir is None else Path(output_dir)


def _record(output_dir: Path, report: str) -> None:
    try:
        failure_report.record(output_dir, report)
    except OSError as error:  # the exit code still shows the failure
        logger.error("The failure could not be written to %s: %s", output_dir, error)
