"""`Estimator`: SageMaker's ``PyTorch`` with safe defaults, checked before anything is uploaded.

It takes the parameters of ``sagemaker.pytorch.PyTorch`` and sends the request that ``PyTorch`` sends;
docs/reference/estimator.md lists every difference. The SDK is loaded when a job is planned or sent, or to look up the
name of a parameter that is none of `Estimator`'s own; this module does not load it.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from estimators import api_retries, source_code
from estimators.checks import parameters
from estimators.checks.arguments import as_hyperparameters, as_path, as_paths, check_names, check_session
from estimators.destinations import Destination, DockerEngine, FitOptions, PipelineStep, SageMaker, SdkLocalMode
from estimators.distribution import from_name
from estimators.errors import EstimatorError, Problem, require_valid
from estimators.instances import instance_preferences as known_preferences
from estimators.plan import FitArguments, Plan, Prices, local_problems, make_plan
from estimators.request.completed_job import Backend, CompletedJob
from estimators.training_job import TrainingJob
from smddp.process.script_multiprocessing import refuse_in_import

if TYPE_CHECKING:
    from estimators.job_handle.events import OnEvent
    from estimators.rehearsal import Rehearsal
    from estimators.sdk.library import Session

logger = logging.getLogger(__name__)

_SAFE_DEFAULTS: Mapping[str, tuple[bool, frozenset[str]]] = {
    "debugger_hook_config": (False, frozenset({"rules"})),
    "disable_profiler": (True, frozenset({"rules", "profiler_config"})),
}
"""Features that the SDK turns on by default and that slow a job down: off, unless one of the named parameters is set.
"""


_MAX_RUN = 24 * 60 * 60
NOTHING_SENT = "SMDDP_NOTHING_SENT"
"""While this environment variable is set, `fit` refuses to send a job."""
_COUNTED_BY = frozenset({"instance_groups", "training_recipe"})
"""Parameters that set the number of hosts themselves."""
_MODEL = "Make it of the TrainingJob that fit() returns: PyTorchModel(model_data=job.model_data, …)."
INSTEAD: Mapping[str, str] = {
    "attach": "Use TrainingJob.attach(name).",
    "create_model": _MODEL,
    "deploy": "Deploy the model of the TrainingJob that fit() returns: PyTorchModel(model_data=job.model_data, …).",
    "latest_training_job": "It is the TrainingJob that fit() returns.",
    "logs": "fit() shows the log; the TrainingJob that it returns has lines().",
    "model_data": "The TrainingJob that fit() returns has model_data.",
    "register": _MODEL,
    "set_hyperparameters": "Give hyperparameters to the constructor.",
    "training_job_analytics": "The TrainingJob that fit() returns has metrics().",
    "transformer": _MODEL,
}
"""Attributes of the SDK's estimators that the `Estimator` lacks, and what to use."""


class Estimator:
    """The description of one training job.

    Examples:
        Train on AWS; to train locally, pass ``sagemaker_session=platform.session`` inside ``with LocalSageMaker() as
        platform``:

            job = Estimator(
                entry_point="train.py",
                role="arn:aws:iam::123456789012:role/SageMaker",
                instance_type="ml.g5.12xlarge",
                instance_count=2,
                distribution="torchrun",
            ).fit({"training": "s3://bucket/data"})
    """

    def __init__(
        self,
        entry_point: str | os.PathLike[str] | None = None,
        *,
        source_dir: str | os.PathLike[str] | None = None,
        dependencies: Sequence[str | os.PathLike[str]] | None = None,
        role: str | None = None,
        instance_type: str | None = None,
        instance_count: int | None = None,
        instance_preferences: Sequence[str | Mapping[str, Any]] | None = None,
        distribution: str | Mapping[str, Any] | None = None,
        hyperparameters: Any = None,
        framework_version: str | None = None,
        py_version: str | None = None,
        image_uri: str | None = None,
        max_run: int | None = _MAX_RUN,
        use_spot_instances: bool = False,
        max_wait: int | None = None,
        checkpoint_s3_uri: str | None = None,
        sagemaker_session: Session | None = None,
        **others: Any,
    ) -> None:
        """Describe a job. Nothing is sent; the SDK is loaded only to look up the names in `others`.

        Args:
            entry_point: The training script: a path in `source_dir`, or on this machine if `source_dir` is None.
            source_dir: The directory to upload with the script, or ``s3://…/sourcedir.tar.gz``.
            dependencies: More files and directories to upload beside the script.
            role: The IAM role that the job runs as, ARN or name; by default the one in the SDK's configuration.
            instance_type: The type of the hosts, such as ``ml.g5.xlarge``.
            instance_count: Number of hosts; by default one, or the number in the recipe or the preferences.
            instance_preferences: Up to five types instead of one: the job runs on the first that AWS has available.
                Each is a type, or a dict with ``instance_type``, ``instance_count`` (in all of them or in none) and,
                optionally, ``training_plan_arns``.
            distribution: What starts the ranks: "torchrun", "pytorchddp", "mpi", "smdistributed",
                "parameter_server", the SDK's own dict, or None for the script alone.
            hyperparameters: A dict, or an instance of the script's dataclass.
            framework_version: The version of PyTorch; by default the newest that the SDK has for the instance type
                and the distribution.
            py_version: The version of Python, such as ``py312``; by default the newest for the version of PyTorch.
            image_uri: An image of your own, instead of versions.
            max_run: Seconds that the job may train; at most 28 days.
            use_spot_instances: Use spare capacity, which is cheaper and can be interrupted.
            max_wait: Seconds that a spot job may take, including the wait for instances; at least `max_run`.
            checkpoint_s3_uri: The S3 prefix to which /opt/ml/checkpoints is copied during the job, and from which the
                next job resumes.
            sagemaker_session: Where to send the job; by default to AWS, as boto3 is configured.
            **others: Every other parameter of ``sagemaker.pytorch.PyTorch``, with the same name and meaning; and
                ``mlflow_config``, the request's MlflowConfig as a dict. A script that imports smddp gets metric
                definitions for the metrics that it prints, after yours, which win by name;
                ``metric_definitions=[]`` turns them off.

        Raises:
            EstimatorError: A parameter is unknown, no request can hold its value, or `sagemaker_session` is no session
                of the SageMaker SDK.
        """
        check_names(others)
        check_session(sagemaker_session)
        stated: dict[str, Any] = {
            "entry_point": as_path("entry_point", entry_point),
            "source_dir": as_path("source_dir", source_dir),
            "dependencies": as_paths("dependencies", dependencies),
            "role": role,
            "instance_type": instance_type,
            "instance_count": instance_count,
            "instance_preferences": instance_preferences,
            "distribution": from_name(distribution),
            "hyperparameters": as_hyperparameters(hyperparameters),
            "framework_version": framework_version,
            "py_version": py_version,
            "image_uri": image_uri,
            "max_run": _MAX_RUN if max_run is None else max_run,
            "use_spot_instances": use_spot_instances or None,
            "max_wait": max_wait,
            "checkpoint_s3_uri": checkpoint_s3_uri,
            **others,
        }
        known = {name: value for name, value in stated.items() if value is not None}
        if not _COUNTED_BY & others.keys() and all(each.instance_count is None for each in known_preferences(known)):
            known.setdefault("instance_count", 1)
        defaults = {name: value for name, (value, unless) in _SAFE_DEFAULTS.items() if not unless & known.keys()}
        self.arguments: Mapping[str, Any] = MappingProxyType({**defaults, **known})
        """The parameters for ``PyTorch`` that are known without the SDK."""
        self._session = sagemaker_session
        self._defaults = frozenset(defaults)

    def fit(
        self,
        inputs: Any = None,
        wait: bool = True,
        logs: bool | str = True,
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
        *,
        prices: Prices | None = None,
        max_cost: float | None = None,
        rehearse: int | None = None,
        on_event: OnEvent | None = None,
    ) -> TrainingJob:
        """Check the job and that its data and buckets exist, upload its code, start it, and wait for its end.

        With a ``PipelineSession`` of SDK V2 nothing is started: `fit` returns the arguments of a step, as
        ``PyTorch.fit`` does, for ``TrainingStep(step_args=…)``. The plan uses the defaults of the pipeline's variables,
        and warns of each.

        Args:
            inputs: The channels: an S3 URI (the channel ``training``), or a dict from channel name to S3 URI. The SDK's
                ``TrainingInput`` and ``FileSystemInput`` may stand for a URI.
            wait: Whether to wait for the job's end.
            logs: Whether to show the job's log while waiting; the SDK's "All" and "None" work, too.
            job_name: The job's name; by default one that contains the time.
            experiment_config: The experiment that the job belongs to, as for ``PyTorch.fit``.
            prices: What instance types cost, as for `plan`.
            max_cost: Dollars, as for `plan`: a job that may cost more is not sent.
            rehearse: Optimizer steps to train on this machine first, by the method `rehearse`. If that raises, the job
                is not sent.
            on_event: A function or shell command that receives the job's events, as for `TrainingJob.wait`.

        Raises:
            EstimatorError: The job can't work as described, or may cost too much: no job was started, and the checks of
                the plan and of S3 come before any upload. Or AWS refused the job, or did not answer, after the upload.
            UnguardedScriptError: This is a child process of multiprocessing that is still importing the submit script.
            TrainingJobFailed: The job failed; its reason says why.
            TrainingJobStopped: The job was stopped, by a person or by a limit.
        """
        refuse_in_import("Estimator.fit")
        if NOTHING_SENT in os.environ:
            raise EstimatorError(
                f"fit() sends nothing while {NOTHING_SENT} is set, as it is by smddp plan, export and sbatch: they see "
                "only what the submit script itself sends before it ends, and neither its child processes nor what it "
                "does at exit. Call fit() there, or unset the variable."
            )
        options = FitOptions(
            wait=wait, logs=logs not in (False, "None"), on_event=on_event, rehearses=rehearse is not None
        )
        destination = self._destination()
        destination.check(options)
        call = FitArguments(
            inputs=inputs, job_name=job_name, experiment_config=experiment_config, prices=prices, max_cost=max_cost
        )
        plan = self._plan(call)
        _require(plan.problems, (*plan.unchecked, *destination.checked_last))
        _require(tuple(destination.problems(plan)))
        if rehearse is not None:
            logger.info("%s", self.rehearse(inputs, steps=rehearse, logs=options.logs))
        return destination.run(plan, options)

    def _destination(self) -> Destination:
        """Return where the job is brought: the session and the instance type decide."""
        from estimators.sdk import request_values
        from estimators.sdk.adapter import adapter

        if self._session is not None and adapter().is_pipeline(self._session):
            return PipelineStep(trainer=lambda: self._trainer(self.arguments))
        known = request_values.with_defaults(self.arguments)
        backend = Backend.of(known, self._session)
        if backend is Backend.SAGEMAKER:
            return SageMaker(arguments=self.arguments, session=self._session)
        if backend is Backend.DOCKER:
            return DockerEngine()
        return SdkLocalMode(trainer=lambda: self._trainer(known))

    def plan(
        self,
        inputs: Any = None,
        *,
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
        prices: Prices | None = None,
        max_cost: float | None = None,
    ) -> Plan:
        """Return the job's hosts, resources, cost and problems. Nothing is sent or uploaded.

        Args:
            inputs: The channels, as for `fit`.
            job_name: The job's name, as for `fit`.
            experiment_config: The experiment that the job belongs to, as for `fit`.
            prices: Dollars per hour and host by instance type, or ``{"on_demand": …, "spot": …}``; the path of a .json
                or .csv file with these prices; or ``"aws"``, which asks AWS's Price List API.
            max_cost: Dollars. The plan has an error if the hosts may cost more by the end of `max_run`, or if the cost
                is unknown.

        Raises:
            EstimatorError: The prices or AWS's configuration can't be read, or the Price List API fails.

        Examples:
            Show the cost, and refuse a job of more than 50 dollars:

                plan = estimator.plan({"training": "s3://bucket/data"}, prices={"ml.g5.xlarge": 1.41}, max_cost=50)
                print(plan)
                plan.require()
        """
        call = FitArguments(
            inputs=inputs, job_name=job_name, experiment_config=experiment_config, prices=prices, max_cost=max_cost
        )
        return self._plan(call)

    @api_retries.errors_explained()
    def _plan(self, call: FitArguments) -> Plan:
        return make_plan(self._configured(self.arguments), call, session=self._session)

    def _configured(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters without our defaults for switches that the user's SDK configuration sets."""
        from estimators.sdk import sessions

        decided = sessions.configured_switches(self._session) & self._defaults
        return {name: value for name, value in arguments.items() if name not in decided}

    def rehearse(
        self, inputs: Any = None, *, steps: int = 20, seconds: int = 600, isolated: bool = False, logs: bool = True
    ) -> Rehearsal:
        """Train some steps of the job on this machine, with its number of hosts, and resume from the checkpoint.

        The script runs to its end in the embedded platform (``LocalSageMaker``), in this Python's environment: it reads
        data, writes a checkpoint and saves a model. With ``checkpoint_s3_uri`` a second attempt resumes. Nothing is
        sent to AWS; of each channel on S3 a sample of about 64 MiB is fetched.
        If the container decides the number of ranks, one for each GPU, this machine's GPUs count.

        Args:
            inputs: The channels, as for `fit`, or directories and files of this machine.
            steps: Optimizer steps of each attempt, after which the loops of ``smddp.Trainer`` end.
            seconds: Time limit of each attempt.
            isolated: Whether the job runs without this Python's packages: in an environment with what AWS's image is
                known to hold, where requirements.txt is installed as in the image. It is made once, and kept.
            logs: Whether to show the log.

        Raises:
            EstimatorError: The job can't be rehearsed, the environment can't be made, an attempt took too long, or the
                second attempt did not resume.
            TrainingJobFailed: The job can't train; its reason says why.
        """
        from estimators.rehearsal import rehearse
        from estimators.sdk import request_values, sessions

        given = {**self.arguments, "inputs": inputs}
        _require(tuple(request_values.check_variables(given, in_pipeline=False)))

        def fit(arguments: Mapping[str, Any], session: Session, data: Mapping[str, Any]) -> TrainingJob:
            return Estimator(**arguments, sagemaker_session=session).fit(dict(data) or None, logs=logs)

        return rehearse(
            request_values.with_defaults(self.arguments),
            request_values.with_defaults(inputs),
            fit=fit,
            steps=steps,
            seconds=seconds,
            isolated=isolated,
            logs=logs,
            session=self._session,
            s3=lambda: sessions.s3_client(self._session),
        )

    if not TYPE_CHECKING:  # for mypy, an attribute that is absent stays an error

        def __getattr__(self, name: str) -> NoReturn:
            told = f"'Estimator' object has no attribute {name!r}"  # as Python says it
            if name in self.__dict__.get("arguments", ()):  # which a copy under way has not yet
                told = f"the Estimator has no {name}. Its parameters are a mapping: estimator.arguments[{name!r}]."
            elif name in INSTEAD:
                told = f"the Estimator has no {name}. {INSTEAD[name]}"
            raise AttributeError(told, name=name, obj=self)

    def to_sagemaker(self) -> Any:
        """Return the SDK's own object for this job: for pipelines, tuners, or a ``fit`` without our checks.

        With SDK V2 it is a ``sagemaker.pytorch.PyTorch``. If the code imports smddp, or for Local Mode, the code's
        bundle lies in a temporary directory that exists as long as the object. With SDK V3 it is a
        ``sagemaker.train.ModelTrainer``, whose ``train`` sends the same request; its code is uploaded immediately.

        Raises:
            EstimatorError: The SDK refuses the parameters, or Local Mode or ModelTrainer does not support one of them.
        """
        from estimators.sdk.adapter import adapter

        if parameters.is_local_mode(self.arguments):
            session = adapter().local_session(self._session)
            _require(tuple(local_problems(Backend.of(self.arguments, session), self.arguments, {}, session)))
        return self._trainer(self.arguments)

    @api_retries.errors_explained()
    def _trainer(self, given: Mapping[str, Any]) -> Any:
        from estimators.local_mode import request
        from estimators.request.code import upload_code
        from estimators.sdk import sessions
        from estimators.sdk.adapter import adapter

        local_mode = parameters.is_local_mode(given)
        # The SDK's Local Mode mounts the code itself, writable, and forgets the dependencies: so it gets a copy.
        into = Path(tempfile.gettempdir(), f"smddp-source-{secrets.token_hex(8)}") if local_mode else None
        session = adapter().local_session(self._session) if local_mode else self._session or sessions.session()
        arguments = request.for_sdk(given) if local_mode else self._configured(given)
        job = CompletedJob.of(arguments, session)
        job.log_choice(arguments)
        bundle = source_code.stage(job.source, into=into, more=job.bundled.files)
        try:
            trainer = adapter().trainer(
                {**job.arguments, **bundle.source.arguments}, session, code=lambda: upload_code(job, session)
            )
        except BaseException:
            bundle.remove()
            raise
        for path in bundle.secrets:
            logger.warning("%s looks secret, and is not in the bundle", path)
        weakref.finalize(trainer, bundle.remove)
        return trainer


def _require(problems: Sequence[Problem], unchecked: Sequence[str] = ()) -> None:
    """Raise EstimatorError with the errors of a job and what is unchecked because of them, or log its warnings."""
    require_valid(problems, unchecked)
    for problem in problems:
        logger.warning("%s", problem)
