"""Prices of instance types, in US dollars per hour and host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPrice:
    """The price of one host per hour, in US dollars."""

    on_demand: Decimal
    """The on-demand price, which is also the most that a spot instance costs."""
    spot: Decimal | None = None
    """The spot price, or None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices and their source."""

    prices: Mapping[str, HostPrice]
    """The price of each instance type."""
    source: str
    """The source to show with each price."""
    missing: Mapping[str, str]
    """The reason why an instance type has no price, where known."""
