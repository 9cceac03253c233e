"""Run a submit script in which `Estimator.fit` sends nothing.

1. Everything else in the script really happens: it may upload data.
2. Jobs that it would create without the Estimator, by boto3 or the SDK itself, are refused.
3. This process sends no job afterwards, either: a thread or exit handler of the script may outlive its main line.
4. Other Python programs that the script starts inherit an environment variable that makes their `fit` refuse.
5. The script can't end this process before its jobs are reported, by ``os._exit`` or ``os.exec…``.
6. A process that the script forks ends where the script ends, and reports nothing.
7. A rehearsal sends its jobs to a local platform, from the thread in which the script calls `fit` or `rehearse`: no
   other thread may.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import boto3
from botocore import handlers

from estimators.errors import EstimatorError, TrainingJobFailed
from estimators.estimator import NOTHING_SENT, Estimator
from estimators.plan import Plan, Prices
from smddp.job.near_names import no_script, notebook_remedy
from smddp.script_syntax import PACKAGE, Modules, executed, only_trains

_CREATING = "before-call.sagemaker"
"""botocore's event before each call of SageMaker's API."""
_READING = ("Describe", "Get", "List", "Search", "BatchDescribe")
"""Prefixes of the operations that change nothing."""
_ENDING = {
    "_exit": "ends its process at once, by os._exit()",
    "execv": "puts another program in its place, by os.exec…()",
    "execve": "puts another program in its place, by os.exec…()",
}
"""The functions of `os` after which nothing could be reported, and their effect in words."""
_THREADS_END = 60.0
"""Seconds to wait for the script's threads after its main line."""

_FIT, _REHEARSE = inspect.signature(Estimator.fit), inspect.signature(Estimator.rehearse)

_Fault: TypeAlias = EstimatorError | TrainingJobFailed
"""The errors about a job that end its script, and go to the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentJob:
    """A job at the moment when it would be sent."""

    estimator: Estimator
    call: Mapping[str, Any]
    """The arguments of ``fit``, by name."""

    @classmethod
    def of(cls, estimator: Estimator, *arguments: Any, **named: Any) -> SentJob:
        """Take the job from a call of ``fit``; raise TypeError if ``fit`` does not accept the arguments."""
        return cls(estimator=estimator, call=_by_name(_FIT, estimator, *arguments, **named))

    @property
    def inputs(self) -> Any:
        """The channels, as for ``fit``."""
        return self.call.get("inputs")

    @property
    def name(self) -> str | None:
        """The job's name, or None if the script gives none."""
        name: str | None = self.call.get("job_name")
        return name

    def plan(self, *, prices: Prices | None = None, max_cost: float | None = None) -> Plan:
        """Return the job's plan; `prices` and `max_cost` override the script's. Raise as `Estimator.plan` does."""
        return self.estimator.plan(
            self.inputs,
            job_name=self.name,
            experiment_config=self.call.get("experiment_config"),
            prices=self.call.get("prices") if prices is None else prices,
            max_cost=self.call.get("max_cost") if max_cost is None else max_cost,
        )


class _Ended(BaseException):  # so that no ``except Exception`` of the script catches it
    """Raised to end the script early, with the reason to report, if any."""

    def __init__(self, reason: str = "", *, error: _Fault | None = None, is_refused: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.error, self.is_refused = reason, error, is_refused


@dataclass(slots=True, kw_only=True)
class ScriptRun:
    """A run of a script."""

    on_job: Callable[[ScriptRun, SentJob], Any]
    """Takes an unsent job; returns the object that `fit` returns to the script."""
    on_rehearsal: Callable[[ScriptRun, Estimator, Mapping[str, Any]], Any]
    """Takes the Estimator and the arguments of a call of `rehearse`; returns the object that `rehearse` returns."""
    ends: list[_Ended] = field(default_factory=list)
    """All early ends, also those raised in threads or caught by the script."""
    process: int = field(default_factory=os.getpid)
    is_over: bool = False
    rehearsing: int | None = None
    """The thread that rehearses a job; None at other times."""
    has_skipped_rehearsal: bool = False
    """Whether the script called `rehearse`, and nothing was rehearsed."""

    @property
    def may_send(self) -> bool:
        """Whether this thread rehearses a job, whose requests go to a local platform."""
        return self.rehearsing == threading.get_ident()

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Let this thread, and no other one, send jobs: within this context they go to a local platform."""
        self.rehearsing = threading.get_ident()
        del os.environ[NOTHING_SENT]
        try:
            yield
        finally:
            os.environ[NOTHING_SENT] = "1"
            self.rehearsing = None

    def ended(self, reason: str = "", *, error: _Fault | None = None, is_refused: bool = False) -> _Ended:
        """Record and return the exception that ends the script."""
        self.ends.append(_Ended(reason, error=error, is_refused=is_refused))
        return self.ends[-1]

    @property
    def is_forked(self) -> bool:
        """Whether this is a process that the script has forked."""
        return os.getpid() != self.process

    @property
    def reason(self) -> str:
        """The reasons why the script was stopped early, or ""."""
        return "; ".join(dict.fromkeys(each.reason for each in self.ends if each.reason))


class NotRun:
    """Stands for a result that does not exist here: any use of it ends the script."""

    def __init__(self, run: ScriptRun, what: str) -> None:
        self._run, self._what = run, what

    def __getattr__(self, name: str) -> NoReturn:
        raise self._run.ended(f"it reads .{name} of {self._what}")

    def __repr__(self) -> str:
        return f"({self._what})"


def _skip_rehearsal(run: ScriptRun, _estimator: Estimator, _call: Mapping[str, Any]) -> NotRun:
    run.has_skipped_rehearsal = True
    return NotRun(run, "a rehearsal, and none is run here")


def run_script(
    script: Path,
    arguments: Sequence[str],
    on_job: Callable[[ScriptRun, SentJob], Any],
    on_rehearsal: Callable[[ScriptRun, Estimator, Mapping[str, Any]], Any] = _skip_rehearsal,
) -> ScriptRun:
    """Run a script whose jobs are collected instead of sent."""
    if not script.is_file():
        raise EstimatorError(no_script(script, "submit script"))
    if remedy := notebook_remedy(script):
        raise EstimatorError(f"{script} is a notebook. {remedy}")
    if _only_trains(script):
        raise EstimatorError(
            f"{script} is a training script: it calls {PACKAGE}.run, and imports no Estimator. It was not run. Give "
            "the script that calls fit() of an estimators.Estimator."
        )
    words, path, threads = sys.argv, sys.path[:], threading.enumerate()
    sys.argv, sys.path[:0] = [str(script), *arguments], [str(script.resolve().parent)]
    run = ScriptRun(on_job=on_job, on_rehearsal=on_rehearsal)
    _send_nothing(run)
    try:
        with contextlib.redirect_stdout(sys.stderr), _output_to_stderr():
            _run_main_line(script, run)
            _await_threads(run, threads)
    finally:
        run.is_over = True
        sys.argv, sys.path[:] = words, path
    for each in run.ends:
        if each.error is not None:
            raise each.error from None
    return run


def _by_name(signature: inspect.Signature, estimator: Estimator, *arguments: Any, **named: Any) -> dict[str, Any]:
    """Return the arguments of a call of an Estimator's method, without the Estimator, by name."""
    call = signature.bind(estimator, *arguments, **named).arguments
    return {name: value for name, value in call.items() if name != "self"}


def _only_trains(script: Path) -> bool:
    modules = Modules(path=script, directories=[script.parent], named={})
    try:
        return only_trains(modules, executed(modules))
    except RecursionError:  # a chain of hundreds of calls or types: the script is left unjudged
        return False


@contextlib.contextmanager
def _output_to_stderr() -> Iterator[None]:
    """Redirect the output of child processes to standard error, too."""
    output = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
        os.dup2(output, 1)
        os.close(output)


def _run_main_line(script: Path, run: ScriptRun) -> None:
    try:
        with contextlib.suppress(_Ended):  # the run has recorded it
            runpy.run_path(str(script), run_name="__main__")
        if run.is_forked:  # ends as Python would: only the parent reports the jobs
            sys.exit()
    except SystemExit as exit_:
        if run.is_forked:
            raise
        if exit_.code:
            raise EstimatorError(f"{script} has ended with {exit_.code!r}: see above what it says.") from exit_
    except Exception as fault:  # any error of the script is shown to the user, with its line
        if run.is_forked:
            traceback.print_exc()
            sys.exit(1)
        raise EstimatorError(f"{script} has failed{_place(script, fault)}: {type(fault).__name__}: {fault}") from fault


def _await_threads(run: ScriptRun, before: Iterable[threading.Thread]) -> None:
    """Wait for the script's threads, as Python does before it exits, for at most `_THREADS_END` seconds."""
    deadline = time.monotonic() + _THREADS_END
    known = {*before, threading.current_thread()}
    while left := [each for each in threading.enumerate() if each not in known and not each.daemon]:
        if time.monotonic() > deadline:
            run.ended(f"its thread {left[0].name} still runs after {_THREADS_END:.0f} s", is_refused=True)
            return
        gc.collect()  # ends the threads of unreferenced pools
        left[0].join(0.1)


def _place(script: Path, fault: Exception) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if Path(frame.filename) == script]
    return f" in line {lines[-1]}" if lines and lines[-1] else ""


def _send_nothing(run: ScriptRun) -> None:
    """Prevent this process from sending jobs from now on: the Estimator's are collected, all others refused."""
    own, own_rehearse = Estimator.fit, Estimator.rehearse

    def fit(self: Estimator, *arguments: Any, **named: Any) -> Any:
        if run.is_over or run.is_forked or run.may_send:  # refuses, except in a rehearsal, if NOTHING_SENT is set
            return own(self, *arguments, **named)
        return run.on_job(run, SentJob.of(self, *arguments, **named))

    def rehearse(self: Estimator, *arguments: Any, **named: Any) -> Any:
        if run.may_send:
            return own_rehearse(self, *arguments, **named)
        on_call = _skip_rehearsal if run.is_over or run.is_forked else run.on_rehearsal
        return on_call(run, self, _by_name(_REHEARSE, self, *arguments, **named))

    def refuse(model: Any, **_: Any) -> None:
        if not model.name.startswith(_READING) and not run.may_send:
            reason = f"it calls {model.name} itself, which is not sent here: only Estimator.fit() is planned"
            raise run.ended(reason, is_refused=True)

    def ending(own: Callable[..., Any], does: str) -> Callable[..., Any]:
        def end(*arguments: Any, **named: Any) -> Any:
            if run.is_over or run.is_forked:
                return own(*arguments, **named)
            raise run.ended(f"it {does}", is_refused=True)

        return end

    for name, does in _ENDING.items():
        setattr(os, name, ending(getattr(os, name), does))
    os.environ[NOTHING_SENT] = "1"
    Estimator.fit, Estimator.rehearse = fit, rehearse  # type: ignore[method-assign]
    handlers.BUILTIN_HANDLERS.append((_CREATING, refuse))  # for each botocore session created from now on
    boto3.DEFAULT_SESSION = None
