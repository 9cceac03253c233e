"""TorchX's scheduler ``smddp``: sends an app through `estimators.Estimator`, and shows the resulting training job.

``torchx status`` and ``torchx log`` get only an app's id. So the id of a local job contains the platform's directory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import boto3
from botocore.exceptions import ClientError
from torchx.schedulers.api import (
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    Stream,
    StructuredOpts,
    filter_regex,
)
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, ReplicaStatus, Role, RoleStatus, runopts
from torchx.specs.finder import ComponentValidationException

from estimators.errors import EstimatorError, shown_reason
from estimators.estimator import Estimator
from estimators.local.errors import LocalPlatformError
from estimators.log_reader import LogLine, LogReader
from estimators.training_job import TrainingJob
from smddp.secret_text import masked

if TYPE_CHECKING:
    from estimators.local.access import Access
    from estimators.sdk.library import Session


_METADATA = "smddp."
_STATES = {
    "Completed": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Stopped": AppState.CANCELLED,
    "Stopping": AppState.RUNNING,
}
_BEFORE_TRAINING = frozenset({"Starting", "Pending", "LaunchingMLInstances", "PreparingTrainingStack", "Downloading"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """The target of jobs."""

    directory: Path | None
    """The local platform's absolute directory; None for AWS, as boto3 is configured."""

    @classmethod
    def of(cls, app_id: str) -> tuple[Destination, str]:
        """Split an app's id into its destination and the training job's name."""
        name, _, directory = app_id.partition("@")
        return cls(directory=Path(unquote(directory)) if directory else None), name

    def app_id(self, job_name: str) -> str:
        """Return the id of a training job, without slashes, which would end it in TorchX's handles."""
        return job_name if self.directory is None else f"{job_name}@{quote(str(self.directory), safe='')}"

    def boto_session(self) -> boto3.Session:
        """Return a boto3 session for this destination, or raise LocalPlatformError if no platform runs there."""
        return boto3.Session() if self.directory is None else self._access(self.directory).boto_session()

    def session(self) -> Session:
        """Return an SDK session for this destination, or raise LocalPlatformError if no platform runs there."""
        from estimators.sdk import sessions

        if self.directory is None:
            return sessions.session()
        access = self._access(self.directory)
        return sessions.session(access.boto_session(), default_bucket=access.default_bucket)

    @property
    def default_role(self) -> str | None:
        """The role of jobs that name none; None on AWS, where the SDK's configuration decides."""
        from estimators.local.access import ROLE

        return None if self.directory is None else ROLE

    @staticmethod
    def _access(directory: Path) -> Access:
        from estimators.local.access import KeptAccess

        return KeptAccess(directory).require_running()


@dataclass
class SmddpOpts(StructuredOpts):  # type: ignore[misc]  # mypy does not check TorchX
    """The options of ``-cfg``; TorchX shows each field's docstring as help."""

    local: bool = False
    """Send the job to the local platform on this machine instead of AWS."""

    directory: str = ".smddp"
    """With local: the platform's directory, as in smddp local up --directory."""

    @property
    def destination(self) -> Destination:
        """The destination that the options select."""
        return Destination(directory=Path(self.directory).absolute() if self.local else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedApp:
    """A checked job, ready to be sent."""

    estimator: Estimator
    inputs: Mapping[str, str] | None
    destination: Destination
    plan: str
    """The job's hosts, cost and warnings."""

    def __str__(self) -> str:
        given = masked(self.estimator.arguments)
        arguments = "\n".join(f"  {name}={value!r}" for name, value in sorted(given.items()))
        where = "AWS" if self.destination.directory is None else f"the local platform on {self.destination.directory}"
        return f"to {where}: {self.plan}\n{arguments}\n  inputs={self.inputs!r}"


class SmddpScheduler(Scheduler[SmddpOpts]):  # type: ignore[misc]
    """Training jobs on AWS or on a local platform.

    Examples:
        >>> create_scheduler("torchx").run_opts().resolve({})["local"]
        False
    """

    def _run_opts(self) -> runopts:
        return SmddpOpts.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: SmddpOpts) -> None:
        """Do nothing: the instance type defines a job's hosts, but TorchX would require CPUs and memory."""

    def _submit_dryrun(self, app: AppDef, cfg: SmddpOpts) -> AppDryRunInfo[CheckedApp, SmddpOpts]:
        """Describe and check the job without sending it; raise ComponentValidationException if it can't work.

        Of this exception TorchX shows only the message, without a traceback.
        """
        try:
            return AppDryRunInfo(_request(app, cfg.destination), str)
        except (EstimatorError, LocalPlatformError) as error:
            raise ComponentValidationException(str(error)) from error

    def schedule(self, dryrun_info: AppDryRunInfo[CheckedApp, SmddpOpts]) -> str:
        """Send the job and return its id."""
        request: CheckedApp = dryrun_info.request
        return request.destination.app_id(request.estimator.fit(request.inputs, wait=False).name)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the state of a training job, equal for all its hosts, or None if there is no such job."""
        destination, name = Destination.of(app_id)
        try:
            found = TrainingJob(name, destination.boto_session()).describe()
        except ClientError as error:
            if error.response["Error"]["Code"] in ("ValidationException", "ResourceNotFound"):
                return None
            raise
        state = _state(found["TrainingJobStatus"], found.get("SecondaryStatus", ""))
        count = found["ResourceConfig"].get("InstanceCount", 1)
        replicas = [
            ReplicaStatus(id=index, role="algo", state=state, hostname=f"algo-{index + 1}") for index in range(count)
        ]
        return DescribeAppResponse(
            app_id=app_id,
            state=state,
            msg=shown_reason(found.get("FailureReason") or found.get("SecondaryStatus", "")),
            roles=[
                Role(name="algo", image=found["AlgorithmSpecification"].get("TrainingImage", ""), num_replicas=count)
            ],
            roles_statuses=[RoleStatus(role="algo", replicas=replicas)],
        )

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """Return the 100 newest training jobs of the account or, with ``-cfg local=True``, of the local platform."""
        destination = SmddpOpts.from_cfg(self.run_opts().resolve(cfg or {})).destination
        found = (
            destination.boto_session()
            .client("sagemaker")
            .list_training_jobs(MaxResults=100, SortBy="CreationTime", SortOrder="Descending")
        )
        return [
            ListAppResponse(
                app_id=destination.app_id(job["TrainingJobName"]),
                name=job["TrainingJobName"],
                state=_state(job["TrainingJobStatus"], ""),
            )
            for job in found["TrainingJobSummaries"]
        ]

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Return the lines of host ``algo-{k + 1}`` so far, or with ``should_tail`` until the job's end.

        Raise ValueError for a single stream: a job's log combines both.
        """
        if streams not in (None, Stream.COMBINED):
            raise ValueError(f"streams={streams.value}: a training job's log has both streams in one; leave it out")
        del role_name  # a job has only one role
        destination, name = Destination.of(app_id)
        session = destination.boto_session()
        found: Iterator[LogLine] = (
            TrainingJob(name, session).lines() if should_tail else LogReader(session.client("logs"), name).unread()
        )
        lines = (f"{line.message}\n" for line in found if line.host == f"algo-{k + 1}" and _is_in(line, since, until))
        return filter_regex(regex, lines) if regex else lines

    def _cancel_existing(self, app_id: str) -> None:
        destination, name = Destination.of(app_id)
        TrainingJob(name, destination.boto_session()).stop()


def create_scheduler(session_name: str, **_: object) -> SmddpScheduler:
    """Make the scheduler; TorchX finds this function by its entry point."""
    return SmddpScheduler("smddp", session_name)


def _request(app: AppDef, destination: Destination) -> CheckedApp:
    """Describe and check a job; raise EstimatorError with all problems, or LocalPlatformError if no platform runs."""
    arguments = _arguments(app)
    inputs = arguments.pop("inputs", None)
    if destination.default_role is not None:
        arguments.setdefault("role", destination.default_role)
    estimator = Estimator(**arguments, base_job_name=app.name, sagemaker_session=destination.session())
    plan = estimator.plan(inputs)
    plan.require()
    return CheckedApp(estimator=estimator, inputs=inputs, destination=destination, plan=str(plan))


def _arguments(app: AppDef) -> dict[str, Any]:
    """Return the Estimator's parameters for an app of ``smddp.train``; raise EstimatorError for another app."""
    if len(app.roles) != 1 or f"{_METADATA}instance_type" not in app.roles[0].metadata:
        raise EstimatorError(
            f"The app {app.name!r} is no training job: the scheduler smddp takes those of the component smddp.train. "
            "Do: torchx run -s smddp smddp.train --help"
        )
    (role,) = app.roles
    environment = {name: value for name, value in role.env.items() if not name.startswith("TORCHX_")}
    return {
        **{key.removeprefix(_METADATA): value for key, value in role.metadata.items() if key.startswith(_METADATA)},
        "entry_point": role.entrypoint,
        "instance_count": role.num_replicas,
        "hyperparameters": dict(map(_hyperparameter, role.args)),
        "image_uri": role.image or None,
        **({"environment": environment} if environment else {}),
    }


def _hyperparameter(argument: str) -> tuple[str, Any]:
    name, equals, text = argument.partition("=")
    if not (name and equals) or name.startswith("-"):
        raise EstimatorError(f"{argument!r} is no hyperparameter. Write name=value, such as epochs=3.")
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text


def _state(status: str, secondary: str) -> AppState:
    if status == "InProgress":
        return AppState.PENDING if secondary in _BEFORE_TRAINING else AppState.RUNNING
    return _STATES.get(status, AppState.UNKNOWN)


def _is_in(line: LogLine, since: datetime | None, until: datetime | None) -> bool:
    seconds = line.timestamp / 1000
    return (since is None or seconds >= since.timestamp()) and (until is None or seconds <= until.timestamp())
