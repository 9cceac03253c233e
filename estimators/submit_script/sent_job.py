"""A job at the moment when a submit script would send it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimators.estimator import Estimator
from estimators.plan import Plan, Prices

_FIT = inspect.signature(Estimator.fit)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentJob:
    """A job at the moment when it would be sent."""

    estimator: Estimator
    call: Mapping[str, Any]
    """The arguments of ``fit``, by name."""

    @classmethod
    def of(cls, estimator: Estimator, *arguments: Any, **named: Any) -> SentJob:
        """Take the job from a call of ``fit``; raise TypeError if ``fit`` does not accept the arguments."""
        call = _FIT.bind(estimator, *arguments, **named).arguments
        return cls(estimator=estimator, call={name: value for name, value in call.items() if name != "self"})

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
