"""Where `Estimator.fit` brings a job: SageMaker, Docker on this machine, the SDK's Local Mode, or a pipeline's step.

Each takes the plan of a job. SageMaker gets the request that the plan has checked, with the code's URI filled in.
Docker gets it with the local paths in place of those in S3. The SDK's Local Mode and a pipeline take the SDK's own
object, which builds its request itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from estimators.checks import channels
from estimators.errors import EstimatorError, Problem
from estimators.plan import Plan, recipe_plan
from estimators.training_job import TrainingJob

if TYPE_CHECKING:
    from estimators.job_handle.events import OnEvent
    from estimators.request.job_request import JobRequest
    from estimators.sdk.library import Session

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """What `fit` does besides the job itself."""

    wait: bool
    """Whether it waits for the job's end."""
    logs: bool
    """Whether it shows the job's log meanwhile."""
    on_event: OnEvent | None
    """The receiver of the job's events."""
    rehearses: bool
    """Whether it rehearses the job first."""


class Destination(Protocol):
    """Where `fit` sends or runs a job."""

    @property
    def checked_last(self) -> tuple[str, ...]:
        """What `problems` checks, in words."""

    def check(self, options: FitOptions) -> None:
        """Raise EstimatorError if an option has no meaning here."""

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Yield the problems that need a look at the data. The job has no other errors."""

    def run(self, plan: Plan, options: FitOptions) -> TrainingJob:
        """Send or run the job. Raise EstimatorError, TrainingJobFailed or TrainingJobStopped as `fit` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SageMaker:
    """AWS, or a local platform."""

    arguments: Mapping[str, Any]
    """The parameters of the job."""
    session: Session | None

    @property
    def checked_last(self) -> tuple[str, ...]:
        """The locations in S3: no request is sent for a job with other errors."""
        return ("the data and buckets on S3",)

    def check(self, options: FitOptions) -> None:
        """Raise EstimatorError if the receiver of events is invalid, or would receive none."""
        if options.on_event is None:
            return
        from estimators.job_handle.events import check_listener

        check_listener(options.on_event)
        if not options.wait:
            raise EstimatorError(
                "on_event receives events only during the wait for the job. Give it to job.wait(), or pass wait=True."
            )

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Yield the problems of the job's inputs and output buckets on S3."""
        from estimators import api_retries
        from estimators.checks import s3_places
        from estimators.sdk import sessions

        assert plan.job is not None and plan.call is not None
        arguments, data = plan.job.arguments, channels.by_name(plan.call.inputs)
        with api_retries.errors_explained():
            yield from s3_places.check(arguments, data, sessions.s3_client(self.session))

    def run(self, plan: Plan, options: FitOptions) -> TrainingJob:
        """Upload the code, send the request that the plan has checked, and wait for the job's end."""
        from estimators import api_retries
        from estimators.request.code import upload_code

        job = plan.job
        assert job is not None
        job.log_choice(self.arguments)
        with api_retries.errors_explained():
            request = self._recipe(plan) if "training_recipe" in job.arguments else plan.request
            assert request is not None
            sent = request.complete(lambda: upload_code(job, request.session))
            api_retries.create_training_job(request.session.sagemaker_client, sent)
        handle = TrainingJob(request.name, request.session)
        cost = "" if plan.cost is None else f"; cost: {plan.cost}"
        logger.info("started training job %s: %s%s", handle.name, plan.topology, cost)
        if options.wait:
            handle.wait(logs=options.logs, on_event=options.on_event)
        return handle

    def _recipe(self, plan: Plan) -> JobRequest:
        """Return the checked request of a training recipe, which the SDK downloads only now."""
        from estimators.sdk import sessions

        assert plan.job is not None and plan.call is not None
        recipe = recipe_plan(plan.job, plan.call, self.session or sessions.session())
        recipe.require()
        assert recipe.request is not None
        return recipe.request


class _ThisMachine:
    """Local jobs: `fit` returns at their end, and they have no events."""

    @property
    def checked_last(self) -> tuple[str, ...]:
        """Empty: `problems` checks nothing."""
        return ()

    def check(self, options: FitOptions) -> None:
        """Raise EstimatorError if events are asked for."""
        if options.on_event is None:
            return
        from estimators.job_handle.events import check_listener

        check_listener(options.on_event)
        raise EstimatorError(
            "on_event gets nothing for instance_type='local'. Leave it out, or send the job to a LocalSageMaker."
        )

    def problems(self, plan: Plan) -> Iterator[Problem]:  # noqa: ARG002 - part of the interface
        """Yield nothing: the plan has looked at the data on this machine."""
        return iter(())

    def _warn(self, options: FitOptions) -> None:
        if not options.wait:
            logger.warning("wait=False: a local job runs to its end before fit() returns")


class DockerEngine(_ThisMachine):
    """Docker containers of this machine, by the local platform's engine in this process."""

    def run(self, plan: Plan, options: FitOptions) -> TrainingJob:
        """Run the job to its end."""
        from estimators.local_mode.fit import fit

        assert plan.job is not None and plan.call is not None and plan.request is not None
        self._warn(options)
        return fit(plan.job, plan.request, inputs=plan.call.inputs, logs=options.logs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkLocalMode(_ThisMachine):
    """The Local Mode of SDK V2."""

    trainer: Callable[[], Any]
    """Makes the SDK's own object for the job."""

    def run(self, plan: Plan, options: FitOptions) -> TrainingJob:
        """Run the job to its end, by the SDK's own code."""
        from estimators.job_handle.service import EndedLocalJob

        assert plan.call is not None
        self._warn(options)
        pytorch = self.trainer()
        pytorch.fit(plan.call.inputs, wait=False, logs=options.logs, job_name=plan.call.job_name)
        name, description = pytorch.latest_training_job.name, pytorch.latest_training_job.describe()
        return TrainingJob(name, EndedLocalJob(name, description))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep:
    """A step of a pipeline of SDK V2, which sends the job when the pipeline runs."""

    trainer: Callable[[], Any]
    """Makes the SDK's own object for the job."""

    @property
    def checked_last(self) -> tuple[str, ...]:
        """Empty: `problems` checks nothing."""
        return ()

    def check(self, options: FitOptions) -> None:
        """Raise EstimatorError for options about a rehearsal or events: `fit` starts no job here."""
        if options.on_event is not None or options.rehearses:
            raise EstimatorError(
                "With a PipelineSession, fit() starts no job. Leave on_event and rehearse out; to rehearse, call "
                "rehearse() of an Estimator without pipeline variables."
            )

    def problems(self, plan: Plan) -> Iterator[Problem]:  # noqa: ARG002 - part of the interface
        """Yield nothing: the data need exist only when the pipeline runs."""
        return iter(())

    def run(self, plan: Plan, options: FitOptions) -> Any:  # noqa: ARG002
        """Return the arguments of a step, as ``PyTorch.fit`` does."""
        from estimators import api_retries

        call = plan.call
        assert call is not None
        with api_retries.errors_explained():
            return self.trainer().fit(call.inputs, job_name=call.job_name, experiment_config=call.experiment_config)
