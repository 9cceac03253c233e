"""The jobs that still run when their platform ends: name them, stop them, and say what they have saved."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from estimators.local.access import Access, ask
from smddp.process.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

_TUNING_NAME = "HyperParameterTuningJobName"
_KINDS = ("ProcessingJob", "TrainingJob")
"""Kinds of jobs on hosts, as in the names of their operations and members."""
_POLL_SECONDS = 0.2
_UPLOAD_SECONDS = 60.0
"""Time limit in seconds for a stopped job's upload of its checkpoints to S3, after its grace time."""


class _Job(NamedTuple):
    kind: str
    """One of `_KINDS`."""
    name: str


def end(access: Access, *, grace_seconds: float | None) -> None:
    """Log the running jobs, and stop them if the platform's objects are kept.

    ``grace_seconds`` is the time from a job's SIGTERM to its SIGKILL; None means that no object outlives the platform,
    so that there is nothing to wait for. A platform that does not answer has no jobs any more. Ctrl-C during the stop
    raises KeyboardInterrupt.
    """
    try:
        with Heartbeat("waiting for the local platform to name its running jobs"):
            _stop_tuning_jobs(access)  # first: a tuning job would replace a training job that is stopped
            jobs = _running(access)
    except (BotoCoreError, ClientError, ValueError) as error:
        logger.debug("the local platform does not answer: %s", error)
        return
    if not jobs:
        return
    listed = ", ".join(job.name for job in jobs)
    if grace_seconds is None:
        logger.warning(
            "the local platform ends, and %s with it, unfinished. Its objects were in memory: no checkpoint is left. "
            "LocalSageMaker(directory, storage='disk') keeps them",
            listed,
        )
        return
    logger.warning(
        "the local platform ends: %s may save a checkpoint within %.0f s. Ctrl-C ends the platform at once",
        listed,
        grace_seconds,
    )
    try:
        _stop(access, jobs)
        deadline = time.monotonic() + grace_seconds + _UPLOAD_SECONDS
        while (left := _running(access)) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        for job in jobs:
            _tell(access, job, in_time=job not in left)
    except (BotoCoreError, ClientError, ValueError) as error:
        logger.error(
            "the newest checkpoints of %s may be missing: the local platform does not answer: %s", listed, error
        )


def _running(access: Access) -> list[_Job]:
    jobs = {  # a set: a job that is stopped between two requests is on both lists
        _Job(kind, job[f"{kind}Name"])
        for kind in _KINDS
        for status in ("InProgress", "Stopping")  # in the order of a job's life, so that no job is on neither list
        for job in _listed(access, f"List{kind}s", f"{kind}Summaries", status)
    }
    return sorted(jobs)


def _listed(access: Access, operation: str, member: str, status: str) -> Iterator[dict[str, Any]]:
    request: dict[str, Any] = {"StatusEquals": status, "MaxResults": 100}
    while True:
        page = ask(access, operation, request)
        yield from page[member]
        if not (token := page.get("NextToken")):
            return
        request["NextToken"] = token


def _stop_tuning_jobs(access: Access) -> None:
    for job in _listed(access, "ListHyperParameterTuningJobs", "HyperParameterTuningJobSummaries", "InProgress"):
        logger.warning("the local platform ends: the tuning job %s is stopped", job[_TUNING_NAME])
        ask(access, "StopHyperParameterTuningJob", {_TUNING_NAME: job[_TUNING_NAME]})


def _stop(access: Access, jobs: list[_Job]) -> None:
    for job in jobs:
        with suppress(ClientError):  # it has ended meanwhile
            ask(access, f"Stop{job.kind}", {f"{job.kind}Name": job.name})


def _tell(access: Access, job: _Job, *, in_time: bool) -> None:
    if not in_time:
        logger.error("%s did not end in time, and is killed: what it wrote last may be missing", job.name)
        return
    described = ask(access, f"Describe{job.kind}", {f"{job.kind}Name": job.name})
    status = described[f"{job.kind}Status"]
    if job.kind != "TrainingJob":
        logger.warning("%s is %s", job.name, status)
        return
    uri = described.get("CheckpointConfig", {}).get("S3Uri")
    where = f"its checkpoints are in {uri}" if uri else "it had no checkpoint_s3_uri: it begins anew"
    logger.warning("%s is %s; %s", job.name, status, where)
