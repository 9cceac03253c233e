"""The ranges that a tuning job searches, read from its request, and their values as text.

Training jobs take hyperparameters as text: an integer as ``3``, a number as ``0.05``, a categorical value unchanged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from estimators.local.engine.errors import invalid

Scaling = Literal["Linear", "Logarithmic", "ReverseLogarithmic"]

AUTO_LOGARITHMIC = 1000.0
"""With ScalingType Auto or absent, a range whose ends differ by at least this factor is searched logarithmically."""


@dataclass(kw_only=True, slots=True, frozen=True)
class NumberRange:
    """Numbers from the least to the most, both included."""

    name: str
    least: float
    most: float
    scaling: Scaling
    whole: bool
    """Whether the values are integers."""

    def text(self, value: float) -> str:
        """Return a value as a training job gets it."""
        return str(round(value)) if self.whole else repr(float(value))

    def value(self, text: str) -> float | None:
        """Return the value of a text, or None if it is outside the range."""
        try:
            value = float(text)
        except ValueError:
            return None
        return value if self.least <= value <= self.most and not (self.whole and value % 1) else None


@dataclass(kw_only=True, slots=True, frozen=True)
class Choice:
    """One of several texts."""

    name: str
    values: tuple[str, ...]

    def value(self, text: str) -> str | None:
        """Return the text if it is one of the values, else None."""
        return text if text in self.values else None


Range = NumberRange | Choice


def read_ranges(given: Mapping[str, Any], static: Mapping[str, str]) -> tuple[Range, ...]:
    """Read ParameterRanges; raise ApiError for an invalid range, or a name given twice or also in ``static``."""
    if given.get("AutoParameters"):
        raise invalid("ParameterRanges.AutoParameters is not offered by the local platform; give each a range.")
    ranges: tuple[Range, ...] = (
        *_numbers(given.get("IntegerParameterRanges", ()), whole=True),
        *_numbers(given.get("ContinuousParameterRanges", ()), whole=False),
        *_choices(given.get("CategoricalParameterRanges", ())),
    )
    if not ranges:
        raise invalid("ParameterRanges has no range; give at least one hyperparameter to tune.")
    counts = Counter([each.name for each in ranges] + [each.name for each in ranges if each.name in static])
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise invalid(
            f"ParameterRanges: {', '.join(twice)} comes more than once, or is in StaticHyperParameters too; each "
            "hyperparameter must be given once."
        )
    return ranges


def _numbers(given: Any, *, whole: bool) -> Iterator[NumberRange]:
    for each in given:
        name, texts = each["Name"], (each["MinValue"], each["MaxValue"])
        try:
            least, most = (int(text) if whole else float(text) for text in texts)
        except ValueError:
            kind = "whole numbers" if whole else "numbers"
            raise invalid(f"ParameterRanges: {name} goes from {texts[0]!r} to {texts[1]!r}; give {kind}.") from None
        if not (_is_bounded(most - least) and _is_bounded(least) and _is_bounded(most)):
            kind = "whole numbers of 64 bits" if whole else "finite numbers"
            raise invalid(
                f"ParameterRanges: {name} goes from {texts[0]} to {texts[1]}; MinValue, MaxValue and their difference "
                f"must be {kind}."
            )
        if least >= most:
            raise invalid(f"ParameterRanges: {name} goes from {texts[0]} to {texts[1]}; MinValue must be the smaller.")
        scaling = each.get("ScalingType", "Auto")
        if scaling == "Auto":
            scaling = "Logarithmic" if least > 0 and most / least >= AUTO_LOGARITHMIC else "Linear"
        if scaling == "Logarithmic" and least <= 0:
            raise invalid(
                f"ParameterRanges: {name} has ScalingType Logarithmic and MinValue {texts[0]}; it must be > 0."
            )
        if scaling == "ReverseLogarithmic" and (whole or least < 0 or most >= 1):
            raise invalid(
                f"ParameterRanges: {name} has ScalingType ReverseLogarithmic, from {texts[0]} to {texts[1]}; that is "
                "for continuous ranges within 0 <= x < 1."
            )
        yield NumberRange(name=name, least=least, most=most, scaling=scaling, whole=whole)


def _is_bounded(value: float) -> bool:
    return abs(value) < 1 << 63 if isinstance(value, int) else math.isfinite(value)


def _choices(given: Any) -> Iterator[Choice]:
    for each in given:
        values = tuple(each["Values"])
        if len(set(values)) < len(values):
            raise invalid(
                f"ParameterRanges: the values of {each['Name']} are {', '.join(values)}; each must be unique."
            )
        yield Choice(name=each["Name"], values=values)
