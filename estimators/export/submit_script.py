"""What a submit script would send: it runs as ever, up to its first ``Estimator.fit()``, and nothing is sent."""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimators.errors import EstimatorError
from estimators.estimator import Estimator


@dataclass(frozen=True, slots=True, kw_only=True)
class SentJob:
    """A job at the moment at which it would be sent."""

    estimator: Estimator
    inputs: Any
    """The channels, as for ``fit``."""
    name: str | None
    """The job's name, if the script gives it one."""


class _Sent(BaseException):  # so that no ``except Exception`` of the script takes it for a failure
    def __init__(self, job: SentJob) -> None:
        super().__init__()
        self.job = job


def first_job(script: Path, arguments: Sequence[str] = ()) -> SentJob:
    """Run a submit script until it sends a job.

    What the script prints goes to standard error. A second job is not come to: it may depend on what the first does.

    Args:
        script: The Python file.
        arguments: Its command line.

    Raises:
        EstimatorError: There is no such file, or it ended without a job of `Estimator`.
    """
    if not script.is_file():
        raise EstimatorError(f"There is no submit script {script} (looked in {Path.cwd()}).")
    words, path = sys.argv, sys.path[:]
    sys.argv, sys.path[:0] = [str(script), *arguments], [str(script.resolve().parent)]
    try:
        with _catching(), contextlib.redirect_stdout(sys.stderr):
            runpy.run_path(str(script), run_name="__main__")
    except _Sent as sent:
        return sent.job
    finally:
        sys.argv, sys.path[:] = words, path
    raise EstimatorError(f"{script} has ended, and sent no job: it must call fit() of an estimators.Estimator.")


@contextlib.contextmanager
def _catching() -> Any:
    def fit(self: Estimator, inputs: Any = None, *_: Any, job_name: str | None = None, **__: Any) -> None:
        raise _Sent(SentJob(estimator=self, inputs=inputs, name=job_name))

    own = Estimator.fit
    Estimator.fit = fit  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Estimator.fit = own  # type: ignore[method-assign]
