"""`remote`: a function that runs as a training job when called."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from estimators.errors import EstimatorError
from estimators.remote_function.remote_job import RemoteJob
from smddp.errors import RemoteFunctionError

if TYPE_CHECKING:
    import boto3

    from estimators.estimator import Estimator
    from estimators.plan import Plan
    from estimators.remote_function.function_code import FunctionCode
    from estimators.sdk.library import Session
    from smddp.remote_function.sent_call import SentCall, Serializer

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)

_OF_PLAN = frozenset({"inputs", "job_name", "experiment_config", "prices", "max_cost"})
_OF_FIT = _OF_PLAN | {"logs", "rehearse", "on_event"}
"""The arguments of ``Estimator.fit`` that `remote` takes as options."""
_NOT_HERE = {
    "entry_point": "the function is what runs",
    "git_config": "the function's code lies here",
    "training_recipe": "the function is what runs",
    "wait": "a call waits, and submit() does not",
}


class RemoteFunction(Generic[P, R]):
    """A function that runs as a training job when called."""

    def __init__(self, function: Callable[P, R], serializer: Serializer, options: Mapping[str, Any]) -> None:
        """Wrap a function; called by `remote`.

        Raises:
            EstimatorError: A job can't call the function, or an option makes no sense for one. Options that `Estimator`
                does not know are refused when the function is called, before anything is sent.
        """
        if not inspect.isfunction(function):
            raise EstimatorError(f"{function!r} is no function: give remote() one that is defined by def.")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise EstimatorError(
                f"{function.__qualname__}() is a coroutine or a generator, whose results can't travel: let it return "
                "a value."
            )
        if serializer not in ("safetensors", "cloudpickle"):
            raise EstimatorError(f"serializer={serializer!r}: give 'safetensors' or 'cloudpickle'.")
        for name, reason in _NOT_HERE.items():
            if name in options:
                raise EstimatorError(f"{name} is no option of a remote function: {reason}. Leave it out.")
        functools.update_wrapper(self, function)
        self.function = function
        """The plain function: calling it runs it locally."""
        self._serializer = serializer
        self._options = dict(options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function as a job, show the log, and return the result.

        Raises:
            EstimatorError: The call can't work and nothing was sent, or the result can't be read.
            TrainingJobFailed: The function raised an exception, or the job failed; the reason has the traceback.
            TrainingJobStopped: The job was stopped.
        """
        return self._send(args, kwargs, wait=True).result()

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> RemoteJob[R]:
        """Start the job and return immediately.

        Raises:
            EstimatorError: The call can't work; nothing was sent.
        """
        return self._send(args, kwargs, wait=False)

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """Return the hosts, resources, cost and problems of a call's job. Nothing is sent.

        Raises:
            EstimatorError: A job can't call the function, or not with these arguments.
        """
        call = {name: value for name, value in self._options.items() if name in _OF_PLAN}
        return self._estimator(args, kwargs).plan(call.pop("inputs", None), **call)

    def options(self, *, serializer: Serializer | None = None, **changes: Any) -> RemoteFunction[P, R]:
        """Return the same function with other options.

        Args:
            serializer: As for `remote`; by default unchanged.
            **changes: Options of `remote`; a value of None removes one.

        Examples:
            On a platform that the script starts itself:

                with LocalSageMaker() as sagemaker:
                    result = train.options(sagemaker_session=sagemaker.session)(0.1)
        """
        options = {name: value for name, value in {**self._options, **changes}.items() if value is not None}
        return RemoteFunction(self.function, serializer or self._serializer, options)

    def attach(self, name: str, session: Session | boto3.Session | None = None) -> RemoteJob[R]:
        """Return a handle on an existing job of this function.

        Args:
            name: The job's name.
            session: Where the job is; by default the option ``sagemaker_session``, else AWS, as boto3 is configured.

        Raises:
            botocore.exceptions.ClientError: There is no such job.
        """
        from estimators.training_job import TrainingJob

        job = TrainingJob.attach(name, session or self._options.get("sagemaker_session"))
        return RemoteJob(job, self.function, self._serializer)

    def _send(self, arguments: tuple[Any, ...], named: Mapping[str, Any], *, wait: bool) -> RemoteJob[R]:
        estimator = self._estimator(arguments, named)
        call = {name: value for name, value in self._options.items() if name in _OF_FIT}
        job = estimator.fit(call.pop("inputs", None), wait, **call)
        return RemoteJob(job, self.function, self._serializer)

    def _estimator(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Estimator:
        """Return the Estimator of a call. Its code directory exists as long as the Estimator object."""
        from estimators import metric_definition
        from estimators.checks import aws_limits
        from estimators.estimator import Estimator
        from estimators.remote_function.function_code import ENTRY_POINT, code_with_call
        from smddp.remote_function.sent_call import CALL_VARIABLE
        from smddp.script_syntax import PythonModule

        name = self.function.__qualname__
        if CALL_VARIABLE in os.environ:
            raise EstimatorError(
                f"{name}() is called in the job of a remote function, which sends no others: {name}.function() runs "
                "there, and what only the sender is to run stands under if __name__ == '__main__':"
            )
        options = {key: value for key, value in self._options.items() if key not in _OF_FIT}
        given = Estimator(ENTRY_POINT.name, **options).arguments  # normalises the paths
        place = self._place(given)
        environment = options.pop("environment", {})
        if not isinstance(environment, Mapping):
            raise EstimatorError(f"environment is {environment!r}: give a dict of texts.")
        pickled = self._serializer == "cloudpickle"
        if pickled and "image_uri" not in options:
            _settle_python(options)
        reference = f"{self.function.__module__ if place is None else place.module}:{name}"
        with tempfile.TemporaryDirectory(prefix="smddp-arguments-") as directory:
            call, files = self._write(arguments, named, reference, Path(directory))
            dependencies = given.get("dependencies", [])
            source_dir = given.get("source_dir", None if place is None else place.root)
            root = None if source_dir is None else Path(source_dir)
            script = None if place is None or pickled else place.file
            code, problems = code_with_call(root, dependencies, files, script=script, pickled=pickled)
        for problem in problems:
            logger.warning("%s", problem)
        if base_job_name := re.sub("[^A-Za-z0-9]+", "-", name).strip("-"):
            options.setdefault("base_job_name", base_job_name)
        if place is not None:
            most = aws_limits.most("metric_definitions")
            tree = PythonModule.read(place.file).tree
            options["metric_definitions"] = metric_definition.completed(
                options.get("metric_definitions"), tree, most=most
            )
        options |= {"environment": {**environment, CALL_VARIABLE: call.to_text()}}
        options |= {"source_dir": code, "dependencies": None}
        try:
            estimator = Estimator(ENTRY_POINT.name, **options)
        except BaseException:
            shutil.rmtree(code.parent, ignore_errors=True)
            raise
        weakref.finalize(estimator, shutil.rmtree, code.parent, ignore_errors=True)
        return estimator

    def _write(
        self, arguments: tuple[Any, ...], named: Mapping[str, Any], reference: str, directory: Path
    ) -> tuple[SentCall, list[Path]]:
        """Write a call's arguments; return the call and its files."""
        from smddp.remote_function import travelling_values
        from smddp.remote_function.program import ARGUMENTS, CalledFunction
        from smddp.remote_function.sent_call import SentCall

        try:
            called = CalledFunction.of(self.function)
            value: Any = called.bind(arguments, named)
            if self._serializer == "cloudpickle":
                value = replace(called, dataclasses={}), value
            document, files = travelling_values.write(
                value,
                directory / ARGUMENTS,
                serializer=self._serializer,
                called="arguments",
                dataclasses=called.dataclasses,
            )
        except RemoteFunctionError as error:
            raise EstimatorError(f"Nothing was sent: {error}.") from error
        return SentCall.of(reference, self._serializer, document), files

    def _place(self, given: Mapping[str, Any]) -> FunctionCode | None:
        """Return the location of the function's code, or None for a pickled function of a notebook."""
        from estimators.remote_function.function_code import FunctionCode, check_guarded

        source_dir = given.get("source_dir")
        if source_dir is not None and source_dir.lower().startswith("s3://"):
            raise EstimatorError(f"source_dir is {source_dir}: the code of a remote function lies here. Leave it out.")
        if str(given.get("instance_type")).startswith("local"):
            raise EstimatorError(
                f"instance_type={given['instance_type']!r} keeps no output from which a result could be read. Give "
                "sagemaker_session=LocalSageMaker().session and an instance type of AWS."
            )
        pickled = self._serializer == "cloudpickle"
        if not (pickled and self.function.__module__ == "__main__"):  # a job imports no pickled __main__
            check_guarded(self.function)
        return FunctionCode.of(self.function, source_dir, pickled=pickled)


def _settle_python(options: dict[str, Any]) -> None:
    """Set the job's Python to this version if it names no image: pickled code runs only on the same version."""
    own = f"py{sys.version_info[0]}{sys.version_info[1]}"
    if options.setdefault("py_version", own) != own:
        raise EstimatorError(
            f"py_version is {options['py_version']!r}, which can't run code that this Python pickles ({own}). Leave it "
            "out, or do without serializer='cloudpickle'."
        )


@overload
def remote(function: Callable[P, R], /, *, serializer: Serializer = ..., **options: Any) -> RemoteFunction[P, R]: ...
@overload
def remote(*, serializer: Serializer = ..., **options: Any) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]: ...
def remote(
    function: Callable[..., Any] | None = None, /, *, serializer: Serializer = "safetensors", **options: Any
) -> Any:
    """Decorate a function to run as a training job when called.

    The job gets the directory from which Python imports the function's module, finds the function there by its name,
    and calls it on each rank under `smddp.run`; the call returns rank 0's result. A parameter named ``job``, or
    annotated with `smddp.Job`, receives the job; the caller leaves it out.

    Args:
        function: The function, defined at the top level of a module or script unless pickled.
        serializer: How function, arguments and result are sent. ``"safetensors"``: the function by name; the values as
            safetensors and JSON, which run no code when loaded: tensors, numpy arrays, numbers, strings, None, paths,
            dicts, lists, tuples, and dataclasses in the function's annotations. ``"cloudpickle"``: all three as
            pickles, for functions of notebooks and values of other types; sender and job need the same version of
            Python.
        **options: The parameters of `estimators.Estimator` except ``entry_point``; and ``inputs``, ``job_name``,
            ``logs``, ``experiment_config``, ``prices``, ``max_cost``, ``rehearse`` and ``on_event`` as for its ``fit``.

    Raises:
        EstimatorError: A job can't call the function, or an option makes no sense for one. Options that `Estimator`
            does not know are refused when the function is called, before anything is sent.

    Examples:
        A script:

            @remote(instance_type="ml.g5.xlarge", role=ROLE)
            def train(lr: float, layers: list[int]) -> dict[str, torch.Tensor]: ...


            if __name__ == "__main__":
                weights = train(0.1, [64, 64])  # waits, and shows the log
                job = train.submit(0.01, [64, 64])  # returns at once; job.result() waits
    """

    def wrap(wrapped: Callable[..., Any]) -> RemoteFunction[..., Any]:
        return RemoteFunction(wrapped, serializer, options)

    return wrap if function is None else wrap(function)
