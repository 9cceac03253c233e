"""Fixtures for pytest, installed with smddp: a local platform, jobs that must train, interruptions and faults.

pytest loads this file in every project that has smddp installed, so it imports nothing until a fixture is used.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from estimators import Estimator, TrainingJob
    from estimators.local import LocalSageMaker

_PLACES = ("checkpoint_s3_uri", "output_path", "output_kms_key", "code_location")
_LOOK_SECONDS = 0.2
_SHOWN_LINES = 20


class AssertTrains(Protocol):
    """The type of the fixture ``assert_trains``."""

    def __call__(
        self,
        estimator: Estimator,
        inputs: Mapping[str, Any] | str | None = None,
        *,
        interruptions: int = 0,
        seconds: float = 600,
    ) -> TrainingJob:
        """Train a job to its end on this machine.

        Args:
            estimator: The job. Its session is ignored: it is sent only to the local platform, with new prefixes for its
                outputs and checkpoints, so that it starts from the beginning.
            inputs: Its channels: directories and files on this machine, or objects on the platform.
            interruptions: Number of interruptions, each after the job has saved another checkpoint. The job must be a
                spot job with a checkpoint_s3_uri.
            seconds: Time limit of the whole job.

        Returns:
            The Completed job. Otherwise the test fails, with the FailureReason and the end of the log.
        """


@pytest.fixture(scope="session")
def sagemaker() -> Iterator[LocalSageMaker]:
    """Start a local SageMaker for this test session: `LocalSageMaker`, with objects in memory."""
    from estimators.local import LocalSageMaker

    with LocalSageMaker() as platform:
        yield platform


@pytest.fixture
def chaos(sagemaker: LocalSageMaker) -> Iterator[Callable[..., None]]:
    """Set the platform's faults until the test ends: ``chaos(Throttle(on="DescribeTrainingJob"))``."""
    yield sagemaker.set_chaos
    sagemaker.set_chaos()


@pytest.fixture
def interrupt(sagemaker: LocalSageMaker) -> Callable[..., None]:
    """Interrupt a running spot job by taking its instances: ``interrupt(job, seconds=300)``.

    It waits until the job saves a new checkpoint, takes the instances, and returns when the next attempt has begun. The
    test fails if the job ends first, or does not get there in `seconds`.
    """

    def interrupt(job: TrainingJob, *, seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        known = {checkpoint.step for checkpoint in job.checkpoints()}

        def has_saved() -> bool:
            saved = any(checkpoint.step not in known for checkpoint in job.checkpoints())
            return saved and job.secondary_status == "Training"

        _await(job, has_saved, "has saved a checkpoint", deadline)
        before = _attempts(job)
        sagemaker.interrupt(job.name)
        _await(job, lambda: _attempts(job) > before, "has begun again", deadline)

    return interrupt


@pytest.fixture
def assert_trains(sagemaker: LocalSageMaker, interrupt: Callable[..., None]) -> AssertTrains:
    """Train a job to its end on this machine, optionally with interruptions; see `AssertTrains`."""

    def assert_trains(
        estimator: Estimator,
        inputs: Mapping[str, Any] | str | None = None,
        *,
        interruptions: int = 0,
        seconds: float = 600,
    ) -> TrainingJob:
        from estimators import Estimator

        if not isinstance(estimator, Estimator):
            raise TypeError(f"assert_trains({estimator!r}): give an Estimator.")
        if interruptions < 0:
            raise ValueError(f"interruptions={interruptions}: give 0 or more.")
        deadline = time.monotonic() + seconds
        place = f"tests/{uuid.uuid4().hex}"
        arguments = {name: value for name, value in estimator.arguments.items() if name not in _PLACES}
        if estimator.arguments.get("checkpoint_s3_uri"):
            arguments["checkpoint_s3_uri"] = f"s3://{sagemaker.default_bucket}/{place}/checkpoints"
        here = Estimator(**arguments, sagemaker_session=sagemaker.session)
        job = here.fit(_upload(sagemaker, inputs, place), wait=False)
        for _ in range(interruptions):
            interrupt(job, seconds=deadline - time.monotonic())
        _await(job, lambda: job.status == "Completed", "is Completed", deadline)
        return job

    return assert_trains


def _upload(platform: LocalSageMaker, inputs: Any, prefix: str) -> Mapping[str, Any] | None:
    from estimators.checks import channels
    from estimators.rehearsal.sample import upload

    return {
        name: upload(name, place, platform, f"{prefix}/{name}")
        if isinstance(place, (str, PurePath)) and not str(place).startswith("s3://")
        else place
        for name, place in channels.by_name(inputs).items()
    } or None


def _attempts(job: TrainingJob) -> int:
    transitions = job.describe()["SecondaryStatusTransitions"]
    return sum(transition["Status"] == "Training" for transition in transitions)


def _await(job: TrainingJob, condition: Callable[[], bool], what: str, deadline: float) -> None:
    while not condition():
        if (status := job.status) not in ("InProgress", "Stopping"):
            if condition():
                return
            _fail(job, f"{job.name} is {status} before it {what}")
        if time.monotonic() > deadline:
            job.stop()
            _fail(job, f"{job.name} is stopped: its time was over before it {what}")
        time.sleep(_LOOK_SECONDS)


def _fail(job: TrainingJob, what: str) -> None:
    reason = job.describe().get("FailureReason", "")
    from estimators.errors import shown_reason
    from smddp.display_text import shown_line

    lines = [f"  {shown_line(host)}: {shown_line(line)}" for host, line in job.logs()][-_SHOWN_LINES:]
    pytest.fail("\n".join([f"{what}. {shown_reason(reason)}".strip(), "The end of its log:", *lines]), pytrace=False)
