"""The strategies of a tuning job, by Optuna, which is imported with the first study.

Random draws points, Grid goes through all points, Bayesian models the objective by a Gaussian process after a few
random points, and Hyperband prunes trials that fall behind. Only one thread uses a study.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from estimators.local.engine.errors import invalid
from estimators.local.engine.tuning.ranges import Choice, NumberRange, Range
from estimators.local.engine.tuning.request import TuningRequest

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial

_DRAWN_FIRST = 3
"""Training jobs of a Bayesian search that are drawn at random: a model needs a few points."""
_STUDY_NAME = "tuning"
"""Constant, because Hyperband's choices depend on the study's name."""
_COMPARED = 3
"""Training jobs that must have ended before another one is stopped early."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Proposal:
    """Hyperparameters to try."""

    number: int
    """The trial's number, from 0."""
    hyperparameters: Mapping[str, str]


class Study:
    """The search of one tuning job: it proposes the hyperparameters of a trial, and takes the result."""

    def __init__(self, request: TuningRequest) -> None:
        """Begin a search; raise ApiError if Optuna is not installed."""
        try:
            import optuna
        except ModuleNotFoundError as error:
            raise invalid(
                f"Tuning jobs need {error.name}, which is not installed: pip install 'smddp[local]'."
            ) from None

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        self._ranges = request.ranges
        self._distributions = {each.name: _distribution(each) for each in request.ranges}
        self._study = optuna.create_study(
            direction="maximize" if request.maximize else "minimize",
            sampler=_sampler(request),
            pruner=_pruner(request),
            study_name=_STUDY_NAME,
        )
        if request.strategy == "Grid":  # Optuna's grid sampler stops Optuna's own loop, which is not used here
            for point in _grid(request):
                self._study.enqueue_trial(point)
        self._trials: dict[int, Trial] = {}
        self._reported: dict[int, int] = {}
        self._prunes = request.stops_early or request.hyperband is not None
        self._longest = None if request.hyperband is None else request.hyperband.most

    def add_known(self, hyperparameters: Mapping[str, str], value: float) -> bool:
        """Add a result of an earlier study; return whether it is in this study's ranges."""
        values = {each.name: _to_optuna(each, hyperparameters.get(each.name, "")) for each in self._ranges}
        if None in values.values():
            return False
        trial = self._optuna.trial.create_trial(params=values, distributions=self._distributions, value=value)
        self._study.add_trial(trial)
        return True

    def ask(self) -> Proposal:
        """Return the next proposal."""
        trial = self._study.ask(self._distributions)
        number = len(self._trials)
        self._trials[number] = trial
        return Proposal(
            number=number,
            hyperparameters={each.name: _from_optuna(each, trial.params[each.name]) for each in self._ranges},
        )

    def should_prune(self, number: int, values: Sequence[float]) -> bool:
        """Return whether to stop a trial; ``values`` are all its objective values so far."""
        if not self._prunes:
            return False
        trial, prune = self._trials[number], False
        # Ask after each value: Optuna's Hyperband answers True once, then goes on to the next rung.
        for step in range(self._reported.get(number, 0), len(values)):
            trial.report(values[step], step + 1)
            prune = prune or trial.should_prune()
        self._reported[number] = len(values)
        return prune or (self._longest is not None and len(values) >= self._longest)

    def tell(self, number: int, value: float | None, *, pruned: bool) -> None:
        """Take a trial's objective value, None without one; ``pruned``: it was stopped after `should_prune`."""
        states = self._optuna.trial.TrialState
        trial = self._trials[number]
        if value is None:
            self._study.tell(trial, state=states.FAIL)
        elif pruned:
            self._study.tell(trial, state=states.PRUNED)
        else:
            self._study.tell(trial, value)


def _distribution(each: Range) -> BaseDistribution:
    from optuna import distributions

    if isinstance(each, Choice):
        return distributions.CategoricalDistribution(each.values)
    if each.whole:
        return distributions.IntDistribution(int(each.least), int(each.most), log=each.scaling == "Logarithmic")
    least, most = each.least, each.most
    if each.scaling == "ReverseLogarithmic":
        least, most = 1 - most, 1 - least
    return distributions.FloatDistribution(least, most, log=each.scaling != "Linear")


def _from_optuna(each: Range, value: Any) -> str:
    """Return Optuna's value as a training job gets it."""
    if isinstance(each, Choice):
        return str(value)
    return each.text(min(max(_reversed(each, value), each.least), each.most))


def _to_optuna(each: Range, text: str) -> Any:
    """Return a training job's text as Optuna's value, or None if it is outside the range."""
    value = each.value(text)
    if value is None or isinstance(each, Choice):
        return value
    return int(value) if each.whole else _reversed(each, float(value))


def _reversed(each: NumberRange, value: float) -> float:
    return 1 - value if each.scaling == "ReverseLogarithmic" else value


def _sampler(request: TuningRequest) -> BaseSampler:
    from optuna import samplers

    match request.strategy:
        case "Random" | "Grid":
            return samplers.RandomSampler(seed=request.seed)
        case "Bayesian":
            return samplers.GPSampler(seed=request.seed, n_startup_trials=_DRAWN_FIRST)
        case "Hyperband":
            return samplers.TPESampler(seed=request.seed)


def _grid(request: TuningRequest) -> list[dict[str, str]]:
    """Return all points of a grid, in an order set by the seed."""
    choices = [each for each in request.ranges if isinstance(each, Choice)]
    points = list(itertools.product(*(each.values for each in choices)))
    random.Random(request.seed).shuffle(points)  # noqa: S311 - an order, and no secret
    return [{each.name: value for each, value in zip(choices, point, strict=True)} for point in points]


def _pruner(request: TuningRequest) -> BasePruner:
    from optuna import pruners

    if request.hyperband:
        return pruners.HyperbandPruner(min_resource=request.hyperband.least, max_resource=request.hyperband.most)
    if request.stops_early:
        return pruners.MedianPruner(n_startup_trials=_COMPARED)
    return pruners.NopPruner()
