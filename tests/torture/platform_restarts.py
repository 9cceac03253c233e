"""R14: SIGKILL takes a local platform's server while jobs are sent, changed and run, and nothing answered is lost.

Each time, a platform is started on the same directory, and what the earlier ones have answered is looked for: jobs with
their tags and changes, how the ended ones ended, and their logs. Then jobs are sent until the server is killed.

    python -m tests.torture.platform_restarts [--kills 50] [--seed 0]
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from estimators.local import LocalSageMaker
from tests.estimators.local.submitted_jobs import ENDED, await_that, job_request, messages
from tests.torture.outcome import Outcome

_LONGEST_SECONDS = 3.0
_LINES = 3


@dataclass(kw_only=True, slots=True)
class Answered:
    """What a platform has said of one job."""

    spot: bool
    tags: list[dict[str, str]] = field(default_factory=list)
    stopped: bool = False
    ended: dict[str, Any] | None = None


def kill_servers(*, kills: int, seed: int, directory: Path) -> Outcome:
    """Kill the server so many times on one directory.

    Args:
        kills: How many.
        seed: Of the moments, and of what is asked for.
        directory: An empty one.
    """
    chance, numbers = random.Random(seed), count()
    answered: dict[str, Answered] = {}
    failures: list[str] = []
    for number in range(kills + 1):
        with LocalSageMaker(directory / "platform", storage="disk", grace_seconds=1) as platform:
            failures += [f"after {number} kills: {what}" for what in _forgotten(platform, answered)]
            if number == kills:
                break
            killer = threading.Timer(
                chance.uniform(0, _LONGEST_SECONDS), os.kill, (platform.server_pid, signal.SIGKILL)
            )
            killer.start()
            _use(platform, answered, numbers, chance)
            killer.join()
    ended = sum(job.ended is not None for job in answered.values())
    notes = f"{len(answered)} jobs answered for, {ended} of them seen to end"
    return Outcome(done=kills, unit="kills", notes=notes, failures=tuple(failures))


def _use(
    platform: LocalSageMaker, answered: dict[str, Answered], numbers: Iterator[int], chance: random.Random
) -> None:
    """Send, tag, stop and look at jobs until nothing answers any more; note only what was answered."""
    client = platform.boto_session.client("sagemaker")
    try:
        while True:
            name, spot = f"job-{next(numbers)}", chance.random() < 0.3
            script = f"for line in $(seq {_LINES}); do echo $line; done; sleep {chance.choice([0, 0, 5])}"
            more = {"EnableManagedSpotTraining": True, "StoppingCondition": _WAITS} if spot else {}
            arn = client.create_training_job(**job_request(platform, name, script, **more))["TrainingJobArn"]
            job = answered[name] = Answered(spot=spot)
            tags = [{"Key": "number", "Value": name}]
            client.add_tags(ResourceArn=arn, Tags=tags)
            job.tags = tags
            if chance.random() < 0.2:
                client.stop_training_job(TrainingJobName=name)
                job.stopped = True
            for other in chance.sample(sorted(answered), min(3, len(answered))):
                _look(client, other, answered[other])
    except (BotoCoreError, ClientError):
        return


_WAITS = {"MaxRuntimeInSeconds": 300, "MaxWaitTimeInSeconds": 300}


def _look(client: Any, name: str, job: Answered) -> None:
    found = client.describe_training_job(TrainingJobName=name)
    if found["TrainingJobStatus"] in ENDED:
        job.ended = {**found, "ResponseMetadata": None}


def _forgotten(platform: LocalSageMaker, answered: dict[str, Answered]) -> Iterator[str]:
    """Yield what is not as it was answered, and how a job has ended that could not go on."""
    client = platform.boto_session.client("sagemaker")
    for name, job in answered.items():
        was = job.ended
        if job.spot and was is None:
            await_that(lambda name=name, job=job: _look(client, name, job) or job.ended, seconds=120)
        _look(client, name, job)
        found = job.ended
        if found is None:
            yield f"{name} still runs, though its platform was killed"
            continue
        if was is not None and found != was:
            yield f"{name} had ended so: {was}, and now so: {found}"
        status, reason = found["TrainingJobStatus"], found.get("FailureReason", "")
        if status == "Failed" and (job.spot or "The local platform ended" not in reason):
            yield f"{name} is Failed: {reason}"
        if job.stopped and status == "Failed":
            yield f"{name} was stopped, and is Failed"
        if (tags := client.list_tags(ResourceArn=found["TrainingJobArn"])["Tags"]) != job.tags and job.tags:
            yield f"{name} has the tags {tags} in place of {job.tags}"
        lines = messages(platform, name)
        if status == "Completed" and lines[-_LINES:] != [str(line + 1) for line in range(_LINES)]:
            yield f"{name} is Completed, and its log is {lines}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory() as directory:
        outcome = kill_servers(kills=arguments.kills, seed=arguments.seed, directory=Path(directory))
    print(outcome)
    sys.exit(bool(outcome.failures))


if __name__ == "__main__":
    main()
