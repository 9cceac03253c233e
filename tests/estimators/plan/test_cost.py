"""What a job costs, and when it may cost too much."""

from __future__ import annotations

import logging
from decimal import Decimal
from typing import Any

import pytest

from estimators.errors import EstimatorError
from estimators.plan import Topology
from estimators.plan.resources import in_words

PRICES = {"ml.g5.xlarge": {"on_demand": "1.408", "spot": "0.5"}, "ml.m5.xlarge": 0.23}


def test_the_cost_is_that_of_all_hosts_for_all_of_max_run(build: Any) -> None:
    cost = build(instance_count=4).plan(prices=PRICES).cost
    assert (cost.per_hour, cost.per_hour_of_spot, cost.at_most) == (Decimal("5.632"), None, Decimal("8.448"))
    assert str(cost) == "$5.64 an hour, at most $8.45 for 1 h 30 min (your prices)"


def test_groups_are_added_up(build: Any) -> None:
    from sagemaker.instance_group import InstanceGroup

    groups = [InstanceGroup("a", "ml.m5.xlarge", 3), InstanceGroup("b", "ml.g5.xlarge", 2)]
    plan = build(instance_type=None, instance_groups=groups, max_run=3600).plan(prices=PRICES)
    assert plan.cost.at_most == 3 * Decimal("0.23") + 2 * Decimal("1.408")


def test_of_preferred_types_the_dearest_is_what_the_job_may_cost(build: Any) -> None:
    preferences = ["ml.m5.xlarge", {"instance_type": "ml.g5.xlarge"}]
    plan = build(instance_type=None, instance_count=2, instance_preferences=preferences).plan(prices=PRICES, max_cost=4)
    assert plan.cost.per_hour == 2 * Decimal("1.408")
    assert str(plan.topology) == "2 × ml.m5.xlarge, or 2 × ml.g5.xlarge, the script alone"
    assert [problem.parameter for problem in plan.errors] == ["max_cost"]
    many = [
        {"instance_type": "ml.m5.xlarge", "instance_count": 9},
        {"instance_type": "ml.g5.xlarge", "instance_count": 1},
    ]
    plan = build(instance_type=None, instance_preferences=many, distribution="torchrun").plan(prices=PRICES)
    assert plan.cost.per_hour == 9 * Decimal("0.23")
    assert plan.topology.hosts_with_ranks is None
    no_price = build(instance_type=None, instance_preferences=["ml.m5.xlarge", "ml.p3.2xlarge"]).plan(prices=PRICES)
    assert no_price.cost.unknown == "your prices has no price of ml.p3.2xlarge"


def test_fewer_ranks_of_mpirun_than_the_hosts_take_are_those_that_the_job_asks_for(build: Any) -> None:
    mpi = {"mpi": {"enabled": True, "processes_per_host": 2}}
    few = build(instance_count=2, distribution=mpi, hyperparameters={"sagemaker_mpi_num_processes": 3}).plan()
    assert (few.topology.processes, str(few.topology)) == (
        3,
        "2 × ml.g5.xlarge, mpirun, 2 processes on each, 3 in all",
    )
    wrong = build(distribution=mpi, hyperparameters={"sagemaker_mpi_num_processes": "two"}).plan()
    assert "sagemaker_mpi_num_processes='two' must be a whole number" in str(wrong.errors[0])


def test_a_spot_job_costs_at_most_the_price_on_demand(build: Any) -> None:
    spot = {"use_spot_instances": True, "max_run": 3600, "max_wait": 7200}
    cost = build(**spot).plan(prices=PRICES).cost
    assert str(cost) == "$0.50 to $1.41 an hour, at most $1.41 for 1 h (your prices)"
    assert build(instance_type="ml.m5.xlarge", **spot).plan(prices=PRICES).cost.per_hour_of_spot is None


def test_the_instances_of_rules_are_paid_for(build: Any) -> None:
    from sagemaker.debugger import ProfilerRule, Rule, rule_configs

    custom = {"image_uri": "rules", "instance_type": "ml.g5.xlarge", "volume_size_in_gb": 10}
    rules = [
        Rule.custom(name="mine", source="s3://data/train", rule_to_invoke="Mine", **custom),
        ProfilerRule.custom(name="also", source="s3://data/train", rule_to_invoke="Also", **custom),
        Rule.sagemaker(rule_configs.loss_not_decreasing()),  # AWS's own instance
    ]
    job = build(instance_type="ml.m5.xlarge", max_run=3600, keep_alive_period_in_seconds=1800, rules=rules)
    plan = job.plan(prices=PRICES, max_cost=3)
    assert plan.cost.per_hour == Decimal("0.23") + 2 * Decimal("1.408")
    assert plan.cost.at_most == Decimal("0.23") * 3 / 2 + 2 * Decimal("1.408")
    assert [problem.parameter for problem in plan.errors] == ["max_cost"]


def test_a_rule_without_a_price_leaves_the_cost_unknown(build: Any) -> None:
    from sagemaker.debugger import Rule

    def rule(instance_type: str) -> Rule:
        return Rule.custom(
            name="mine",
            image_uri="rules",
            instance_type=instance_type,
            volume_size_in_gb=10,
            source="s3://data/train",
            rule_to_invoke="Mine",
        )

    cost = build(rules=[rule("ml.p3.16xlarge")]).plan(prices=PRICES).cost
    assert cost.unknown == "your prices has no price of ml.p3.16xlarge"
    cost = build(rules=[rule("ml.m5.xlarge")], role=None).plan(prices=PRICES).cost
    assert cost.unknown.startswith("the instances of its rules are known only once it has no errors")


def test_a_warm_pool_is_paid_for(build: Any) -> None:
    cost = build(keep_alive_period_in_seconds=1800, max_run=1800).plan(prices=PRICES).cost
    assert (cost.at_most, cost.seconds) == (Decimal("1.408"), 3600)


@pytest.mark.parametrize(
    ("parameters", "unknown"),
    [
        ({"instance_type": "ml.g5.2xlarge"}, "your prices has no price of ml.g5.2xlarge"),
        ({"training_plan": "arn:aws:sagemaker:us-east-1:123456789012:training-plan/p"}, "a training plan is paid for"),
        ({"instance_count": 0}, "the number of hosts is not known"),
        ({"max_run": -3}, "max_run is -3"),
        ({"instance_type": ["ml.m5.xlarge"]}, "your prices has no price of ['ml.m5.xlarge']"),
    ],
)
def test_nothing_is_guessed(build: Any, parameters: Any, unknown: str) -> None:
    plan = build(**parameters).plan(prices=PRICES, max_cost=1000)
    assert plan.cost.at_most is None
    assert str(plan.cost).startswith(f"not known: {unknown}")
    assert [problem.found for problem in plan.errors if problem.parameter == "max_cost"] == [
        f"the cost is not known: {plan.cost.unknown}"
    ]


def test_a_job_on_this_machine_costs_nothing(build: Any) -> None:
    plan = build(instance_type="local", image_uri="mine").plan(max_cost=0)
    assert str(plan.cost) == "nothing: it runs on this machine"
    assert not [problem for problem in plan.errors if problem.parameter == "max_cost"]


def test_a_job_that_may_cost_too_much_is_not_sent(build: Any, requests: list[dict[str, Any]]) -> None:
    with pytest.raises(EstimatorError) as refused:
        build().fit(prices=PRICES, max_cost=2)
    assert "max_cost: the job may cost $1.41 an hour, at most $2.12 for 1 h 30 min (your prices), and $2.00 is" in str(
        refused.value
    )
    assert not requests


def test_the_limit_itself_is_allowed(
    build: Any, requests: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    build().fit(prices=PRICES, max_cost=2.112, wait=False)
    assert len(requests) == 1
    assert "1 × ml.g5.xlarge, the script alone; cost: $1.41 an hour" in caplog.text


@pytest.mark.parametrize("limit", ["50", -1, float("inf"), True])
def test_what_is_no_limit_is_refused(build: Any, limit: Any) -> None:
    assert [problem.remedy for problem in build().plan(prices=PRICES, max_cost=limit).errors] == [
        "Give dollars, such as 50."
    ]


def test_a_limit_without_prices_is_refused(build: Any) -> None:
    (problem,) = build().plan(max_cost=50).errors
    assert problem.found == "no prices are given, so nothing is known of the cost"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59, "59 s"), (3660, "1 h 1 min"), (28 * 86400, "28 d"), (90061, "1 d 1 h 1 min 1 s")],
)
def test_a_duration_is_said_exactly(seconds: int, words: str) -> None:
    assert in_words(seconds) == words


def test_a_job_without_max_run_has_a_day(build: Any) -> None:
    assert build(max_run=None).plan(prices=PRICES).cost.seconds == 24 * 3600


@pytest.mark.parametrize(("stated", "ranks"), [("4", 8), (4, 8), ("four", None), ("0", None), ([4], None)])
def test_the_ranks_are_a_number_or_not_known(build: Any, stated: Any, ranks: int | None) -> None:
    job = build(instance_count=2, hyperparameters={"sagemaker_mpi_num_of_processes_per_host": stated})
    assert Topology.of(job.arguments).processes == ranks
