"""R16: StopTrainingJob races a job's end: the job is Completed or Stopped, and what Describe says of its model is true.

python -m tests.torture R16 --stop-races 200
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from estimators.local import LocalSageMaker
from tests.estimators.local.submitted_jobs import await_end, await_that, submit
from tests.torture.outcome import Outcome

_AT_ONCE = 4
_RUNS_SECONDS = 0.5
"""How long a job's program runs."""
_LATEST_SECONDS = 1.2
"""How long after the job is seen to train it is stopped, at the latest: its end is about in the middle."""
_SECONDS = 120


def race_stops(platform: LocalSageMaker, *, races: int, seed: int) -> Outcome:
    """Stop so many jobs at random moments around their end.

    Args:
        platform: Where.
        races: How many.
        seed: Of the moments.
    """
    chance = random.Random(seed)
    moments = [chance.uniform(0, _LATEST_SECONDS) for _ in range(races)]
    client = platform.boto_session.client("sagemaker")
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        ends = list(threads.map(lambda moment: _race(platform, client, moment), moments))
    counted = Counter(how for how, _ in ends)
    notes = ", ".join(f"{number} {how}" for how, number in sorted(counted.items()))
    return Outcome(done=races, unit="races", notes=notes, failures=tuple(why for _, whys in ends for why in whys))


def _race(platform: LocalSageMaker, client: Any, moment: float) -> tuple[str, list[str]]:
    """Run one race; how it ended, and what is wrong with that."""
    name = submit(platform, f"echo a > /opt/ml/model/a; sleep {_RUNS_SECONDS} & wait")
    await_that(
        lambda: "TrainingStartTime" in client.describe_training_job(TrainingJobName=name), seconds=_SECONDS, pause=0.01
    )
    time.sleep(moment)
    accepted = True
    try:
        client.stop_training_job(TrainingJobName=name)
    except ClientError:  # it has ended
        accepted = False
    job = await_end(platform, name, seconds=_SECONDS)
    status = job["TrainingJobStatus"]
    how = f"{status}, the stop {'taken' if accepted else 'refused'}"
    return how, [f"{name}, stopped after {moment:.3f} s: {why}" for why in _wrong(platform, job, accepted=accepted)]


def _wrong(platform: LocalSageMaker, job: dict[str, Any], *, accepted: bool) -> list[str]:
    status, wrong = job["TrainingJobStatus"], []
    if status not in ("Completed", "Stopped") or (status == "Stopped" and not accepted):
        wrong.append(f"it is {status}: {job.get('FailureReason')}")
    if "EndTime" not in job["SecondaryStatusTransitions"][-1] or job["SecondaryStatus"] != status:
        wrong.append(f"it ends with {job['SecondaryStatusTransitions'][-1]}")
    listed = platform.boto_session.client("s3").list_objects_v2(
        Bucket=platform.default_bucket, Prefix=f"out/{job['TrainingJobName']}/"
    )
    there = {item["Key"] for item in listed.get("Contents", ())}
    said = urlsplit(job["ModelArtifacts"]["S3ModelArtifacts"]).path.removeprefix(f"/{platform.default_bucket}/")
    left = said.lstrip("/") in there
    if (there and not left) or (status == "Completed" and not left):
        wrong.append(f"it is {status}, names the model {said!r}, and left {sorted(there)}")
    return wrong
