"""The cost of a job's hosts, in US dollars, and whether it exceeds a limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_UP, Decimal, InvalidOperation
from typing import Any

from estimators.errors import Problem, error
from estimators.instances import instance_preferences
from estimators.plan.prices import PriceTable
from estimators.plan.resources import Topology, in_words

_REMEDY = "Give prices that have it, or leave max_cost out."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a job's hosts and of the instances of its Debugger rules, without storage, transfer and taxes.

    AWS charges each host for the job's training time, and for the time a warm pool is kept afterwards. See
    https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_DescribeTrainingJob.html (BillableTimeInSeconds)
    """

    per_hour: Decimal | None = None
    """Dollars per hour for all hosts, on demand; None if unknown."""
    per_hour_of_spot: Decimal | None = None
    """Dollars per hour with all hosts as spot instances; None if the job is not a spot job, or the price is unknown."""
    at_most: Decimal | None = None
    """Dollars for the whole of `max_run` and of the warm pool's time, on demand; None if unknown."""
    seconds: int = 0
    """Seconds that `at_most` covers."""
    source: str
    """Where the prices come from."""
    unknown: str | None = None
    """Why the cost is unknown, or None if it is known."""

    @classmethod
    def of_this_machine(cls) -> Cost:
        """Return the cost of a local job: AWS charges nothing."""
        return cls(per_hour=Decimal(0), at_most=Decimal(0), source="it runs on this machine")

    @classmethod
    def of(
        cls, topology: Topology, arguments: Mapping[str, Any], table: PriceTable, *, rules: Sequence[str] | None
    ) -> Cost:
        """Compute the cost of a job.

        Args:
            topology: The job's hosts.
            arguments: The parameters for ``PyTorch``.
            table: Prices.
            rules: The instance types of the job's rules, each on demand for `max_run`; None if unknown.
        """
        if unknown := next(_unknown(topology, arguments, table, rules), None):
            return cls(source=table.source, unknown=unknown)
        assert rules is not None
        ways = [topology.hosts, *((each,) for each in topology.instead)]  # any of them may be the most expensive
        priced = [[(count, table.prices[name]) for count, name in way if count is not None] for way in ways]
        hosts = max(priced, key=lambda way: sum(count * price.on_demand for count, price in way))
        kept = arguments.get("keep_alive_period_in_seconds") or 0
        seconds = (arguments.get("max_run") or 0) + kept
        of_rules = sum((table.prices[name].on_demand for name in rules), Decimal(0))
        per_hour = of_rules + sum((count * price.on_demand for count, price in hosts), Decimal(0))
        spot = [count * price.spot for count, price in hosts if price.spot is not None]
        told = arguments.get("use_spot_instances") is True and len(spot) == len(hosts)
        return cls(
            per_hour=per_hour,
            per_hour_of_spot=sum(spot, of_rules) if told else None,
            at_most=(per_hour * seconds - of_rules * kept) / 3600,
            seconds=seconds,
            source=table.source,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the cost for JSON, with dollars as numbers."""
        return {
            "per_hour": _number(self.per_hour),
            "per_hour_of_spot": _number(self.per_hour_of_spot),
            "at_most": _number(self.at_most),
            "seconds": self.seconds,
            "source": self.source,
            "unknown": self.unknown,
        }

    def __str__(self) -> str:
        if self.unknown or self.per_hour is None or self.at_most is None:
            return f"not known: {self.unknown}"
        if not self.seconds:
            return f"nothing: {self.source}"
        low = "" if self.per_hour_of_spot is None else f"{dollars(self.per_hour_of_spot)} to "
        return (
            f"{low}{dollars(self.per_hour)} an hour, at most {dollars(self.at_most)} for {in_words(self.seconds)} "
            f"({self.source})"
        )


def check(cost: Cost | None, max_cost: object) -> Iterator[Problem]:
    """Yield an error if `max_cost` is not an amount, if the job may cost more, or if its cost is unknown."""
    where = "max_cost"
    limit = _limit(max_cost)
    if limit is None:
        yield error(where, f"is {max_cost!r}", "Give dollars, such as 50.")
    elif cost is None:
        yield error(where, "no prices are given, so nothing is known of the cost", "Give prices, a table or 'aws'.")
    elif cost.at_most is None:
        yield error(where, f"the cost is not known: {cost.unknown}", _REMEDY)
    elif cost.at_most > limit:
        yield error(
            where,
            f"the job may cost {cost}, and {dollars(limit)} is the most that is allowed",
            "Lower max_run, take fewer or cheaper hosts, or allow more.",
        )


def dollars(amount: Decimal) -> str:
    """Return dollars as text, rounded up to cents, or to a hundredth of a cent below ten cents."""
    step = Decimal("0.0001") if 0 < amount < Decimal("0.1") else Decimal("0.01")
    return f"${amount.quantize(step, ROUND_UP):,}"


def _limit(max_cost: object) -> Decimal | None:
    if isinstance(max_cost, bool) or not isinstance(max_cost, int | float | Decimal):
        return None
    try:
        limit = Decimal(str(max_cost))
    except InvalidOperation:
        return None
    return limit if limit.is_finite() and limit >= 0 else None


def rule_instances(request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the instance types that a request's Debugger and profiler rules pay for. AWS's own rules are free."""
    rules = [*request.get("DebugRuleConfigurations", ()), *request.get("ProfilerRuleConfigurations", ())]
    return tuple(rule["InstanceType"] for rule in rules if "InstanceType" in rule)


def _unknown(
    topology: Topology, arguments: Mapping[str, Any], table: PriceTable, rules: Sequence[str] | None
) -> Iterator[str]:
    """Yield the reasons why the cost of a job is unknown."""
    if "training_plan" in arguments or any(
        "TrainingPlanArns" in each.members for each in instance_preferences(arguments)
    ):
        yield "a training plan is paid for when it is bought, not by the hour"
    hosts = [*topology.hosts, *topology.instead]
    if not hosts or any(type(count) is not int or count < 1 for count, _ in hosts):
        yield "the number of hosts is not known"
    if rules is None:
        yield "the instances of its rules are known only once it has no errors and no variables of a pipeline"
    for name in (*(name for _, name in hosts), *(rules or ())):
        if not isinstance(name, str) or name not in table.prices:
            yield table.missing.get(str(name), f"{table.source} has no price of {name}")
    for parameter in ("max_run", "keep_alive_period_in_seconds"):
        seconds = arguments.get(parameter) or 0
        if type(seconds) is not int or seconds < 0:
            yield f"{parameter} is {seconds!r}"


def _number(amount: Decimal | None) -> float | None:
    return None if amount is None else float(round(amount, 6))
