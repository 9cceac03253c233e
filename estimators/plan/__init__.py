"""A job before it is sent: its hosts, resources, cost and problems."""

from estimators.plan.checked_request import FitArguments
from estimators.plan.cost import Cost
from estimators.plan.make import local_problems, make_plan, recipe_plan
from estimators.plan.plan import Plan
from estimators.plan.policies import Policies
from estimators.plan.prices import HostPrice, Prices
from estimators.plan.resources import Channel, Resources, Topology

__all__ = [
    "Channel",
    "Cost",
    "FitArguments",
    "HostPrice",
    "Plan",
    "Policies",
    "Prices",
    "Resources",
    "Topology",
    "local_problems",
    "make_plan",
    "recipe_plan",
]
