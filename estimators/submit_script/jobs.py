"""The jobs of a submit script that is run without sending anything: its first one, a rehearsed one, or all planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from estimators.errors import EstimatorError, TrainingJobFailed
from estimators.estimator import Estimator
from estimators.plan import Plan, Prices
from estimators.submit_script.run import NotRun, ScriptRun, SentJob, run_script

if TYPE_CHECKING:
    from estimators.rehearsal import Rehearsal

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJobs:
    """The jobs that a submit script would send."""

    plans: tuple[Plan, ...]
    """The plans of its jobs, in order."""
    stopped: str
    """The reason why the script was stopped early, or ""."""
    is_refused: bool
    """Whether the script may do more than the plans show: create jobs without the Estimator, leave a thread running,
    replace its process by another program, or end it by ``os._exit``."""


class _UnsentJob(NotRun):
    """Stands for the `TrainingJob` of an unsent job: it has only the name that the script gave."""

    def __init__(self, run: ScriptRun, job: SentJob) -> None:
        super().__init__(run, "a job, and no job is sent here")
        if job.name is not None:
            self.name = job.name

    def wait(self, *_: Any, **__: Any) -> None:
        """Return immediately."""


def first_job(script: Path, arguments: Sequence[str] = ()) -> SentJob:
    """Run a submit script until it sends a job; return that job. The script's output goes to standard error.

    A second job is not reached, because it may depend on the first. Raise EstimatorError if the file is absent, fails,
    or ends without a job of `Estimator`.
    """
    jobs: list[SentJob] = []

    def stop(run: ScriptRun, job: SentJob) -> NoReturn:
        jobs.append(job)
        raise run.ended()

    run = run_script(script, arguments, stop)
    return _some(jobs, script, run)[0]


def rehearsed_job(script: Path, arguments: Sequence[str], **options: Any) -> Rehearsal:
    """Run a submit script until it sends or rehearses a job, and rehearse that job.

    `options` are those of `Estimator.rehearse`; None leaves an option as the script's call has it. The output of both
    goes to standard error. Raise as `first_job` and `Estimator.rehearse` do.
    """
    rehearsals: list[Rehearsal] = []
    chosen = {name: value for name, value in options.items() if value is not None}

    def rehearse(run: ScriptRun, estimator: Estimator, call: Mapping[str, Any]) -> NoReturn:
        try:
            with run.rehearsal():
                rehearsals.append(estimator.rehearse(**{**call, **chosen}))
        except (EstimatorError, TrainingJobFailed) as fault:
            raise run.ended(error=fault) from fault
        raise run.ended()

    def rehearse_sent(run: ScriptRun, job: SentJob) -> NoReturn:
        steps = job.call.get("rehearse")
        rehearse(run, job.estimator, {"inputs": job.inputs, **({} if steps is None else {"steps": steps})})

    run = run_script(script, arguments, rehearse_sent, rehearse)
    return _some(rehearsals, script, run, calls="fit() or rehearse()")[0]


def planned_jobs(
    script: Path, arguments: Sequence[str] = (), *, prices: Prices | None = None, max_cost: float | None = None
) -> PlannedJobs:
    """Run a submit script, and return the plan of each job that it would send.

    After a job the script continues until it ends, or uses a result that only a sent job has. `prices` and `max_cost`
    override the script's own. Raise EstimatorError if the file is absent, fails, or sends no job of `Estimator`, or if
    the prices can't be read.
    """
    plans: list[Plan] = []

    def go_on(run: ScriptRun, job: SentJob) -> _UnsentJob:
        try:
            # Plan immediately, because the script may change its values later.
            plans.append(job.plan(prices=prices, max_cost=max_cost))
        except EstimatorError as fault:
            raise run.ended(error=fault) from fault
        return _UnsentJob(run, job)

    run = run_script(script, arguments, go_on)
    return PlannedJobs(
        plans=tuple(_some(plans, script, run)),
        stopped=run.reason,
        is_refused=any(each.is_refused for each in run.ends),
    )


def _some(found: list[_Found], script: Path, run: ScriptRun, *, calls: str = "fit()") -> list[_Found]:
    if not found:
        ended = f"was not run to its end: {run.reason}" if run.reason else "has ended, and sent no job"
        rehearses = f" It calls rehearse(), which sends no job: run smddp rehearse {script}."
        raise EstimatorError(
            f"{script} {ended}. It must call {calls} of an estimators.Estimator."
            f"{rehearses if run.has_skipped_rehearsal else ''}"
        )
    return found
