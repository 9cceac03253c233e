"""``smddp plan`` and ``smddp rehearse``: what a submit script would send, shown or tried on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smddp.cli.options import decimal_number, whole_number
from smddp.display_text import shown_error, shown_text

if TYPE_CHECKING:
    from estimators.submit_script.jobs import PlannedJobs


def plan(
    submit: Annotated[
        Path,
        typer.Argument(help="The script that calls Estimator.fit()."),
    ],
    arguments: Annotated[
        list[str], typer.Argument(metavar="[-- ARGUMENTS]", help="The script's own command line.")
    ] = [],  # noqa: B006  # typer makes a new one
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    prices: Annotated[
        str | None, typer.Option(metavar="FILE|aws", help="What instance types cost: a .json or .csv file, or aws.")
    ] = None,
    max_cost: Annotated[float | None, decimal_number(help="The most dollars that each job may cost.")] = None,
    iam: Annotated[bool, typer.Option("--iam", help="Print the IAM policies that each job needs, too.")] = False,
) -> None:
    """Show the jobs that SUBMIT would send: hosts, S3 URIs, cost and problems. Nothing is sent.

    The script really runs, except for Estimator.fit(). Exit code 1 if a job can't be sent, 2 if the script fails.
    """
    from estimators.errors import EstimatorError
    from estimators.submit_script.jobs import planned_jobs

    try:
        planned = planned_jobs(submit, arguments, prices=prices, max_cost=max_cost)
    except EstimatorError as error:
        typer.echo(f"smddp plan: {shown_error(str(error))}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as interrupt:
        typer.echo("smddp plan: interrupted, and nothing was sent", err=True)
        raise typer.Exit(130) from interrupt
    typer.echo(_document(planned, iam=iam) if as_json else shown_text(_text(planned, iam=iam)))
    raise typer.Exit(0 if _can_be_sent(planned) else 1)


def rehearse(
    submit: Annotated[Path, typer.Argument(help="The script that calls Estimator.fit() or Estimator.rehearse().")],
    arguments: Annotated[
        list[str], typer.Argument(metavar="[-- ARGUMENTS]", help="The script's own command line.")
    ] = [],  # noqa: B006  # typer makes a new one
    steps: Annotated[
        int | None, whole_number(least=1, help="Optimizer steps of each attempt; by default the script's own, or 20.")
    ] = None,
    seconds: Annotated[
        int | None, whole_number(least=1, help="Time limit of each attempt; by default the script's own, or 600.")
    ] = None,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Run it without this Python's packages, with those of AWS's image.")
    ] = False,
) -> None:
    """Train some steps of SUBMIT's first job on this machine, and resume from its checkpoint. Nothing is sent to AWS.

    The script really runs up to its first Estimator.fit() or Estimator.rehearse(). Exit code 1 if the job fails, 2 if
    it can't be rehearsed.
    """
    from estimators.errors import EstimatorError, TrainingJobFailed
    from estimators.submit_script.jobs import rehearsed_job

    try:
        rehearsal = rehearsed_job(submit, arguments, steps=steps, seconds=seconds, isolated=isolated or None)
    except (EstimatorError, TrainingJobFailed) as error:
        typer.echo(f"smddp rehearse: {shown_error(str(error))}", err=True)
        raise typer.Exit(1 if isinstance(error, TrainingJobFailed) else 2) from error
    typer.echo(shown_text(str(rehearsal)))


def _can_be_sent(planned: PlannedJobs) -> bool:
    return not planned.is_refused and not any(plan.errors for plan in planned.plans)


def _document(planned: PlannedJobs, *, iam: bool) -> str:
    import json

    document: dict[str, Any] = {
        "can_be_sent": _can_be_sent(planned),
        "stopped": planned.stopped or None,
        "jobs": [
            {**plan.to_dict(), **({"iam": plan.policies().to_dict() if plan.resources else None} if iam else {})}
            for plan in planned.plans
        ],
    }
    return json.dumps(document, indent=2)


def _text(planned: PlannedJobs, *, iam: bool) -> str:
    import json

    parts = []
    for number, plan in enumerate(planned.plans, start=1):
        parts.append(f"job {number}: {plan}" if len(planned.plans) > 1 else str(plan))
        if iam and plan.resources is None:
            parts.append("The policies that it needs are not known: it has errors, or is no job that AWS runs.")
        elif iam:
            policies = plan.policies()
            parts += [f"The role that it runs as needs:\n{json.dumps(policies.role, indent=2)}"]
            parts += [f"The user who sends it needs:\n{json.dumps(policies.submitter, indent=2)}"]
            parts += [f"note: {note}." for note in policies.notes]
    if planned.stopped:
        parts.append(f"The script was not run to its end: {planned.stopped}. Jobs that come after are not shown.")
    return "\n".join(parts)
