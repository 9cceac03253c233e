"""The plan of a job before it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from estimators.errors import EstimatorError, Problem, require_valid
from estimators.plan.checked_request import FitArguments
from estimators.plan.cost import Cost
from estimators.plan.policies import Policies
from estimators.plan.resources import Resources, Topology
from estimators.request.completed_job import CompletedJob
from estimators.request.job_request import JobRequest
from smddp.process import notebook_html
from smddp.secret_text import masked_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result of `Estimator.plan`."""

    topology: Topology
    """The job's hosts and ranks."""
    problems: tuple[Problem, ...]
    """Errors and warnings about the job."""
    unchecked: tuple[str, ...] = ()
    """What could not be checked because of the errors."""
    global_batch: int | None = None
    """Samples of an optimizer step over all ranks, or None unless the script takes them from a hyperparameter."""
    resources: Resources | None = None
    """Everything else that the job uses. None if there are errors, for a local job, and for a training recipe."""
    cost: Cost | None = None
    """The cost of the hosts, or None without prices."""
    job: CompletedJob | None = field(default=None, repr=False)
    """The completed parameters and the code; None for `to_sagemaker`'s plan of a local job."""
    call: FitArguments | None = field(default=None, repr=False)
    """The arguments of ``fit``; a pipeline's variables in them have their defaults, unless a pipeline runs the job."""
    request: JobRequest | None = field(default=None, repr=False)
    """The CreateTrainingJob that `fit` sends. None if there are errors, for a training recipe, and for the SDK's Local
    Mode."""

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that prevent the job from being sent."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems that are only logged."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    def require(self) -> None:
        """Raise if the job has errors.

        Raises:
            EstimatorError: There are errors; the message lists them all, and what is `unchecked` because of them.
        """
        require_valid(self.problems, self.unchecked)

    def policies(self) -> Policies:
        """Return the IAM policies that this job needs: for its role, and for the user who sends it.

        Raises:
            EstimatorError: The policies are unknown: the job has errors, runs locally, or is a training recipe.
        """
        if self.resources is None:
            raise EstimatorError(
                "What the job needs is not known: it has errors, runs on this machine, or is one of a training recipe. "
                "Correct its errors first.",
                self.errors,
            )
        return Policies.of(self.resources)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a dict for JSON."""
        return {
            "hosts": [{"count": count, "instance_type": name} for count, name in self.topology.hosts],
            "instead": [{"count": count, "instance_type": name} for count, name in self.topology.instead],
            "launcher": self.topology.launcher,
            "processes_per_host": self.topology.processes_per_host,
            "processes": self.topology.processes,
            "global_batch": self.global_batch,
            "resources": None if self.resources is None else self.resources.to_dict(),
            "bundled_hyperparameters": [] if self.job is None else list(self.job.bundled.names),
            "cost": None if self.cost is None else self.cost.to_dict(),
            "problems": [
                {
                    "severity": problem.severity,
                    "parameter": problem.parameter,
                    "found": problem.found,
                    "remedy": problem.remedy,
                }
                for problem in self.problems
            ],
            "unchecked": list(self.unchecked),
        }

    def __str__(self) -> str:
        facts = (f"  {name}: {value}" for name, value in self._facts())
        return "\n".join([str(self.topology), *facts, *(f"{each.severity}: {each}" for each in self.problems)])

    def _repr_html_(self) -> str:
        problems = ((f"{each.severity}: {each.parameter}", f"{each.found}. {each.remedy}") for each in self.problems)
        facts = [("hosts", str(self.topology)), *self._facts(), *problems]
        return notebook_html.table((name, masked_text(value)) for name, value in facts)

    def _facts(self) -> Iterator[tuple[str, str]]:
        """Yield what is known of the job besides its hosts, each as a label and a readable value."""
        if self.cost is not None:
            yield "cost", str(self.cost)
        if self.global_batch is not None:
            yield "global batch", str(self.global_batch)
        if self.job is not None and self.job.bundled.line:
            yield "hyperparameters", self.job.bundled.line
        if self.resources is not None:
            yield from self.resources.lines()
        if self.unchecked:
            yield "not checked because of the errors", ", ".join(self.unchecked)
