"""The error of a rehearsal that failed, with what the user needs of its files: they end with its local platform."""

from __future__ import annotations

import logging
import re
import tarfile
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from estimators.errors import EstimatorError, TrainingJobFailed
from smddp.job.printed_error import last_lines
from smddp.storage.s3_errors import S3_ERRORS

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

logger = logging.getLogger(__name__)

_RANK = re.compile(r" \(rank ([0-9]{1,6}) of [0-9]{1,6} on ")
"""The rank that failed first, in a job's reason."""
_MOST_CHARACTERS = 4000
"""Characters of a traceback's end in the error: about 20 frames."""
_PIECE = 1 << 16
"""Bytes that are read at a time, and bytes of a file's end that are kept."""


def culprit_traceback(s3: S3Client, description: Mapping[str, Any]) -> str:
    """Return the last frames of the traceback of the rank that a failed job's reason names; empty if it left none.

    ``smddp.run`` writes each failed rank's whole traceback into the output data.
    """
    rank = _RANK.search(description.get("FailureReason", ""))
    if rank is None:
        return ""
    output = description["OutputDataConfig"]["S3OutputPath"].removeprefix("s3://").rstrip("/")
    bucket, _, key = f"{output}/{description['TrainingJobName']}/output/output.tar.gz".partition("/")
    try:
        found = _read_member(s3.get_object(Bucket=bucket, Key=key)["Body"], f"traceback-rank-{rank[1]}.txt")
    except (*S3_ERRORS, tarfile.TarError, OSError):  # swallowed: the job's own reason must not be hidden by another
        logger.debug("no traceback could be read from s3://%s/%s", bucket, key, exc_info=True)
        return ""
    lines = last_lines(found, _MOST_CHARACTERS)
    return "\n".join([f"The end of the traceback of rank {rank[1]}:", *lines]) if lines else ""


def _read_member(packed: Any, name: str) -> str:
    """Return the end of a text file in an archive, which is read once, and never unpacked; empty if it is absent."""
    with packed, tarfile.open(fileobj=packed, mode="r|gz") as archive:
        for member in archive:
            if member.name == name and member.isreg():
                file = archive.extractfile(member)
                assert file is not None
                end = b""
                for piece in iter(partial(file.read, _PIECE), b""):
                    end = (end + piece)[-_PIECE:]
                return end.decode("utf-8", "replace")
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
    told = f"{fault.reason}\n{traceback}" if traceback else fault.reason
    return type(fault)(
        f"The rehearsal of {what} failed{resumed}: {told}\n"
        f"It ran on this machine, and nothing was sent to AWS. The local platform and its files of /opt/ml are gone: "
        f"{left}. To repeat it: Estimator.rehearse(), or smddp rehearse with the submit script.",
        job_name=fault.job_name,
        status=fault.status,
        secondary_status=fault.secondary_status,
        reason=fault.reason,
    )
