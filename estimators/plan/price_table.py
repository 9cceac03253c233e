"""Prices of instance types, in US dollars an hour of one host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPrice:
    """What one host of a type costs an hour, in US dollars."""

    on_demand: Decimal
    """Without spot capacity: the most that a spot instance costs, too."""
    spot: Decimal | None = None
    """As spot capacity, if the table says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices, and who says so."""

    prices: Mapping[str, HostPrice]
    """By instance type."""
    source: str
    """What is named beside each figure."""
    missing: Mapping[str, str]
    """By instance type, why it has no price, where that is known."""
