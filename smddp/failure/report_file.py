"""The file ``output/failure``, in which a failed job leaves its report: how a rank and a launcher write and read it.

A rank writes the report of its own error. A launcher writes one after a rank was killed or a host was lost; a report
that a rank wrote itself is more precise, and stays.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from smddp.cluster import without_run_variables
from smddp.errors import DistributedError
from smddp.failure.report import LIMIT

logger = logging.getLogger(__name__)

_END_BYTES = 4 * LIMIT  # the maximum bytes of LIMIT characters in UTF-8


def record(output_dir: Path, report: str) -> None:
    """Write the first 1024 characters of a report to ``failure`` in the output directory, atomically."""
    write(output_dir / "failure", report[:LIMIT])


def write(file: Path, text: str) -> None:
    """Write a file, and its directory if absent, atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)  # it still exists if the disk is full


def renew(output_dir: Path, report: str) -> bool:
    """Give the current report a new mark if it begins with this one; return whether it does."""
    file = output_dir / "failure"
    try:
        if find(output_dir) is None or not read(file).startswith(report):
            return False
        os.utime(file)
    except OSError:
        return False
    return True


def read(file: Path) -> str:
    """Return a report file that any program may have written, a long one cut in its middle. May raise OSError."""
    with file.open("rb") as content:
        text = content.read(2 * _END_BYTES)
        if (size := os.fstat(content.fileno()).st_size) > len(text):
            content.seek(size - _END_BYTES)
            text = text[:_END_BYTES] + content.read(_END_BYTES)
    return text.decode("utf-8", "replace").strip()


def find(output_dir: Path) -> tuple[int, int] | None:
    """Return a mark that identifies the current report file; None if absent."""
    try:
        found = (output_dir / "failure").stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def forget(output_dir: Path, earlier: tuple[int, int] | None) -> None:
    """Remove an earlier attempt's report if `find` still returns ``earlier``; another rank may have failed since."""
    if earlier is not None and find(output_dir) == earlier:
        (output_dir / "failure").unlink(missing_ok=True)


class ReportFile:
    """The job's report file on this host as a launcher uses it, without a report from before the launcher began.

    Does nothing if there is no output directory.
    """

    def __init__(self) -> None:
        self._output_dir = _output_dir()
        self._earlier = self._find()

    def read(self) -> str | None:
        """Return a report that a rank has written since; None if absent."""
        if self._output_dir is None or self._find() in (None, self._earlier):
            return None
        try:
            return read(self._output_dir / "failure")
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
        return None if self._output_dir is None else find(self._output_dir)


def tell_failure(error: DistributedError) -> None:
    """Log what happened to another host, and write it as the job's reason: the ranks only know that they lost peers."""
    logger.error("%s", error)
    if (output_dir := _output_dir()) is not None:
        _record(output_dir, str(error))


def _output_dir() -> Path | None:
    environ = without_run_variables(os.environ)
    run_dir = environ.get("SMDDP_RUN_DIR")
    output_dir = environ.get("SM_OUTPUT_DIR") or (f"{run_dir}/output" if run_dir else None)
    return None if output_dir is None else Path(output_dir)


def _record(output_dir: Path, report: str) -> None:
    try:
        record(output_dir, report)
    except OSError as error:  # the exit code still shows the failure
        logger.error("The failure could not be written to %s: %s", output_dir, error)
