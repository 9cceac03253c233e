"""The error of a rehearsal that failed, with what the user needs of its files: they end with its local platform."""

from __future__ import annotations

import logging
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from estimators.errors import EstimatorError, TrainingJobFailed, shown_reason
from estimators.job_handle.files import download
from estimators.log_reader import LogReader
from smddp.failure import find_error, last_lines
from smddp.storage.s3_errors import S3_ERRORS

if TYPE_CHECKING:
    import boto3

logger = logging.getLogger(__name__)

_RANK = re.compile(r" \(rank ([0-9]{1,6}) of [0-9]{1,6} on ")
"""The rank that failed first, in a job's reason."""
_MOST_CHARACTERS = 4000
"""Characters of a traceback's end in the error: about 20 frames."""


def culprit_traceback(fault: TrainingJobFailed, session: boto3.Session) -> str:
    """Return the last frames of the traceback that a failed job's reason names.

    Empty if the reason already has these frames, or no rank left a traceback. ``smddp.run`` writes each failed rank's
    whole traceback into the output data. A script without it prints its own.
    """
    rank = _RANK.search(fault.reason)
    written = _traceback_in_output(rank[1], fault, session) if rank is not None else ""
    whose = f" of rank {rank[1]}" if rank is not None else ""
    lines = last_lines(written or _traceback_in_log(fault, session), _MOST_CHARACTERS)
    return "\n".join([f"The end of the traceback{whose}:", *lines]) if lines else ""


def _traceback_in_output(rank: str, fault: TrainingJobFailed, session: boto3.Session) -> str:
    """Return the traceback of a rank in the job's output data; empty if there is none."""
    try:
        description = session.client("sagemaker").describe_training_job(TrainingJobName=fault.job_name)
        with tempfile.TemporaryDirectory(prefix="smddp-rehearsal-") as directory:
            output = download(session.client("s3"), description, Path(directory), only="output").output
            assert output is not None, "download() raises if there is no output"
            return (output / f"traceback-rank-{rank}.txt").read_text("utf-8", errors="replace")
    except (*S3_ERRORS, EstimatorError, OSError):  # swallowed: the job's own reason must not be hidden by another
        logger.debug("no traceback of rank %s could be read", rank, exc_info=True)
        return ""


def _traceback_in_log(fault: TrainingJobFailed, session: boto3.Session) -> str:
    """Return the traceback in the job's log that its reason quotes; empty if there is none, or the reason has it all.

    Of several ranks that printed into the log, the first error counts, as for the reason.
    """
    hosts: dict[str, list[str]] = {}
    try:
        for line in LogReader(client=session.client("logs"), job_name=fault.job_name).unread():
            hosts.setdefault(line.host, []).append(line.message)
    except (*S3_ERRORS, EstimatorError):  # swallowed, as above
        logger.debug("the log of %s could not be read", fault.job_name, exc_info=True)
    errors = (find_error("\n".join(lines), first=first) for lines in hosts.values() for first in (False, True))
    for error in errors:
        if error is not None and error.was_raised and error.message.partition("\n")[0] in fault.reason:
            return "" if error.context in fault.reason else f"{error.context}\n{error.message}"
    return ""


def describe_failure(
    fault: TrainingJobFailed, what: str, traceback: str, *, attempt: int, steps: int, seconds: int, logs: bool
) -> TrainingJobFailed | EstimatorError:
    """Return the error of a rehearsal whose job failed: nothing of the job remains, for its platform ends."""
    if fault.secondary_status == "MaxRuntimeExceeded":
        return EstimatorError(
            f"The rehearsal was given up after {seconds} s, in which the script did not end; the start of Python and "
            f"PyTorch counts, too. Only loops of smddp.Trainer end after {attempt * steps} optimizer steps; give more "
            "seconds, fewer steps, or less data."
        )
    resumed = ", when it resumed from the checkpoint of the first attempt" if attempt > 1 else ""
    left = "only the log above remains" if logs else "rehearse(logs=True) shows its log"
    told = f"{shown_reason(fault.reason)}\n{traceback}" if traceback else shown_reason(fault.reason)
    return type(fault)(
        f"The rehearsal of {what} failed{resumed}: {told}\n"
        f"It ran on this machine, and nothing was sent to AWS. The local platform and its files of /opt/ml are gone: "
        f"{left}. To repeat it: Estimator.rehearse(), or smddp rehearse with the submit script.",
        job_name=fault.job_name,
        status=fault.status,
        secondary_status=fault.secondary_status,
        reason=fault.reason,
    )
