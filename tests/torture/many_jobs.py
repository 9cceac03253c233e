"""R15: many jobs at once on one local platform: each is Completed, and no line of its log is lost.

python -m tests.torture R15 --jobs-at-once 50
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from estimators.local import LocalSageMaker
from tests.estimators.local.submitted_jobs import await_end, messages, submit
from tests.torture.outcome import Outcome

_LINES = 200
_SECONDS = 600


def run_at_once(platform: LocalSageMaker, *, jobs: int) -> Outcome:
    """Run so many jobs at once, each of which prints lines in two bursts.

    Args:
        platform: Where.
        jobs: How many.
    """
    with ThreadPoolExecutor(jobs) as threads:
        failures = [why for whys in threads.map(lambda _: _run(platform), range(jobs)) for why in whys]
    return Outcome(done=jobs, unit="jobs", notes=f"{_LINES} lines each", failures=tuple(failures))


def _run(platform: LocalSageMaker) -> list[str]:
    half = _LINES // 2
    name = submit(platform, f"seq {half}; sleep 1; seq {half + 1} {_LINES}; echo a > /opt/ml/model/a")
    job = await_end(platform, name, seconds=_SECONDS, pause=1)
    wrong = []
    if job["TrainingJobStatus"] != "Completed":
        wrong.append(f"{name} is {job['TrainingJobStatus']}: {job.get('FailureReason')}")
    if (lines := messages(platform, name)) != [str(number + 1) for number in range(_LINES)]:
        wrong.append(f"{name} has {len(lines)} of {_LINES} lines, or in another order")
    return wrong
