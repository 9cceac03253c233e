"""`RemoteJob`: the job of a remote function, and the function's result."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from estimators.errors import EstimatorError
from smddp.errors import RemoteFunctionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from estimators.training_job import TrainingJob
    from smddp.remote_function.sent_call import Serializer

R = TypeVar("R")


class RemoteJob(Generic[R]):
    """A remote function's job.

    Examples:
        Run several jobs at a time:

            jobs = [train.submit(lr) for lr in (0.1, 0.01)]
            losses = [job.result() for job in jobs]
    """

    def __init__(self, training_job: TrainingJob, function: Callable[..., R], serializer: Serializer) -> None:
        """Point at a job. Sends no request.

        Args:
            training_job: The job.
            function: The function that the job calls.
            serializer: How the result is sent: a pickle is loaded only with ``"cloudpickle"``.
        """
        self.training_job = training_job
        """The job: its status, log, metrics and checkpoints, and ``stop()``."""
        self._function = function
        self._serializer = serializer

    def result(self, *, logs: bool = False) -> R:
        """Wait for the job's end, and return the function's result: with several ranks, rank 0's.

        Args:
            logs: Whether to show the job's log while waiting.

        Raises:
            TrainingJobFailed: The function raised an exception, or the job failed; the reason has the traceback.
            TrainingJobStopped: The job was stopped.
            EstimatorError: The result is missing, was changed after the job wrote it, or belongs to another function.
        """
        self.training_job.wait(logs=logs)
        description: Any = self.training_job.describe()
        try:
            result: R = self._read(description.get("Environment", {}))
        except RemoteFunctionError as error:
            raise EstimatorError(f"{self.training_job.name}: {error}.") from error
        return result

    def _read(self, environment: dict[str, str]) -> Any:
        from smddp.remote_function import travelling_values
        from smddp.remote_function.program import RESULT, SIGNATURE, CalledFunction
        from smddp.remote_function.sent_call import SentCall

        call = SentCall.read(environment)
        name = self._function.__qualname__
        if call.function.partition(":")[2] != name or call.serializer != self._serializer:
            raise RemoteFunctionError(
                f"it has called {call.function} by {call.serializer}, and {name}() of {self._serializer} is asked for "
                "its result"
            )
        with tempfile.TemporaryDirectory(prefix="smddp-result-") as directory:
            output = self.training_job.download(directory, only="output").output
            assert output is not None, "download() raises if there is none"
            return travelling_values.read(
                output / RESULT,
                serializer=call.serializer,
                check=lambda document: call.check_result(document, Path(output, SIGNATURE)),
                dataclasses=CalledFunction.of(self._function).dataclasses,
            )

    def __repr__(self) -> str:
        return f"RemoteJob({self.training_job!r})"
