"""The prices of instance types, in US dollars per hour and host: a mapping, a file, or ``"aws"``."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators.errors import EstimatorError

if TYPE_CHECKING:
    from estimators.sdk.library import Session


Prices = Mapping[str, Any] | str | os.PathLike[str]
"""A mapping from instance type to dollars per hour, or to ``{"on_demand": …, "spot": …}``; the path of a JSON file with
such a mapping, or of a CSV file with the columns instance_type, on_demand and, optionally, spot; or ``"aws"``.
"""

AWS = "aws"
"""Stands for the prices in AWS's Price List API, of the job's instance types in its region."""

_FORM = 'Give dollars an hour, such as 1.41, or {"on_demand": 1.41, "spot": 0.6}.'
_MOST = 10**6
"""Highest plausible price, in dollars per hour."""
_COLUMNS = ("instance_type", "on_demand", "spot")


def price_table(given: Prices, instance_types: Collection[str], session: Session | None) -> PriceTable:
    """Return the user's prices, or AWS's for these instance types; raise EstimatorError if they can't be read."""
    if isinstance(given, str) and given == AWS:
        return _aws_prices(instance_types, session)
    if isinstance(given, Mapping):
        return PriceTable(prices=_prices(given, "prices"), source="your prices", missing={})
    if not isinstance(given, str | os.PathLike):
        raise EstimatorError(f"prices is {given!r:.60}. Give a mapping, the path of a JSON or CSV file, or 'aws'.")
    path = Path(given)
    readers: Mapping[str, Callable[[str, Path], Any]] = {".json": _from_json, ".csv": _from_csv}
    if path.suffix not in readers:
        raise EstimatorError(f"prices is {str(path)!r}, no file of prices. Give a .json or .csv file, or 'aws'.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as fault:
        raise EstimatorError(
            f"prices is {str(path)!r}: {fault.strerror}. Give the path of a file of prices."
        ) from fault
    except ValueError as fault:  # not UTF-8, or a path with a NUL
        raise EstimatorError(f"The prices can't be read from {path}: {fault}. Give a file of UTF-8 text.") from fault
    return PriceTable(prices=_prices(readers[path.suffix](text, path), str(path)), source=str(path), missing={})


def _from_json(text: str, path: Path) -> Any:
    import json

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if twice := [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]:
            raise EstimatorError(f"{path} names {twice[0]} twice. Give one price for each instance type.")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as fault:
        raise EstimatorError(f"{path} is not JSON: {fault}. Give {{instance type: dollars an hour, …}}.") from fault


def _from_csv(text: str, path: Path) -> Any:
    import csv

    try:
        lines = list(csv.reader(text.splitlines(), skipinitialspace=True))
    except csv.Error as fault:
        raise EstimatorError(f"{path} is no CSV: {fault}. Give a line for each instance type.") from fault
    names, *lines = lines or [[]]
    found = [name.strip() for name in names]
    if not set(_COLUMNS[:2]) <= set(found) <= set(_COLUMNS):
        raise EstimatorError(
            f"{path} has the columns {', '.join(found) or '(none)'}. Its first line must name instance_type and "
            "on_demand, and may name spot."
        )
    prices: dict[str, Any] = {}
    for values in filter(None, lines):
        if len(values) > len(found):
            raise EstimatorError(f"{path} has a line of {len(values)} values under {len(found)} names.")
        row = dict(zip(found, values, strict=False))
        name = row.pop("instance_type", "").strip()
        if name in prices:
            raise EstimatorError(f"{path} has two lines for {name}. Give one price for each instance type.")
        prices[name] = {column: value for column, value in row.items() if value}
    return prices


def _prices(given: Any, source: str) -> dict[str, HostPrice]:
    if not isinstance(given, Mapping):
        raise EstimatorError(f"{source} is {given!r:.60}, not a mapping of instance types to prices. {_FORM}")
    return {str(name): _price(value, f"{source}: {name}") for name, value in given.items()}


def _price(value: Any, where: str) -> HostPrice:
    if not isinstance(value, Mapping):
        return HostPrice(on_demand=_dollars(value, where))
    if "on_demand" not in value or value.keys() - {"on_demand", "spot"}:
        raise EstimatorError(f"{where} has {', '.join(map(str, value)) or 'nothing'}. {_FORM}")
    on_demand, spot = _dollars(value["on_demand"], where), value.get("spot")
    if spot is None:
        return HostPrice(on_demand=on_demand)
    if (of_spot := _dollars(spot, where)) > on_demand:
        raise EstimatorError(
            f"{where} has the spot price {spot}, above {value['on_demand']} on demand. AWS never charges more for spot."
        )
    return HostPrice(on_demand=on_demand, spot=of_spot)


def _dollars(value: Any, where: str) -> Decimal:
    try:
        price = Decimal(str(value))
    except InvalidOperation:
        price = Decimal("NaN")
    if isinstance(value, bool) or not price.is_finite() or not 0 <= price <= _MOST:
        raise EstimatorError(f"{where} is {value!r:.60}. {_FORM}")
    return price


# Prices from AWS's Price List API: on-demand training on an instance type in a region.
#
# The API has no prices of managed spot training. Its answers are described in
# https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/price-changes.html
_API_REGION = "us-east-1"
"""One of the few regions with the API, which has the prices of all regions."""
_OFFER = "Give a table of prices, or a file, instead of 'aws'."


def _aws_prices(instance_types: Collection[str], session: Session | None) -> PriceTable:
    """Ask AWS for the prices of instance types in the session's region, with one request for each.

    Raise EstimatorError if there is no region, or the API fails or refuses.
    """
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    from estimators.sdk import sessions

    if (region := sessions.region(session)) is None:
        raise EstimatorError("The prices depend on the region, and none is configured. Set AWS_DEFAULT_REGION.")
    boto_session = boto3.Session() if session is None else session.boto_session
    prices: dict[str, HostPrice] = {}
    missing: dict[str, str] = {}
    try:
        client = boto_session.client("pricing", region_name=_API_REGION)
        for name in dict.fromkeys(instance_types):
            found = set(_hourly(client, name, region))
            if len(found) == 1:
                prices[name] = HostPrice(on_demand=found.pop())
            else:
                told = ", ".join(f"${price}" for price in sorted(found))
                missing[name] = (
                    f"AWS has several prices for training on {name} in {region}: {told}"
                    if found
                    else f"AWS has no price for training on {name} in {region}"
                )
    except ClientError as fault:
        raise EstimatorError(
            f"AWS does not tell its prices: {fault}. The user who asks needs the right pricing:GetProducts. {_OFFER}"
        ) from fault
    except BotoCoreError as fault:
        raise EstimatorError(
            f"AWS can't be asked for its prices: {str(fault).rstrip('.')}. Sign in (aws configure, or aws sso login), "
            f"or check the network. {_OFFER}"
        ) from fault
    return PriceTable(prices=prices, source=f"AWS's price list for {region}", missing=missing)


def _hourly(client: Any, instance_type: str, region: str) -> Iterator[Decimal]:
    """Yield each hourly price of training on an instance type."""
    filters = [
        {"Type": "TERM_MATCH", "Field": "regionCode", "Value": region},
        {"Type": "TERM_MATCH", "Field": "instanceName", "Value": instance_type},
    ]
    usage = re.compile(rf"(?:[A-Z0-9]+-)?Train:{re.escape(instance_type)}")  # not notebooks, endpoints, warm pools
    pages = client.get_paginator("get_products").paginate(ServiceCode="AmazonSageMaker", Filters=filters)
    for page in pages:
        for document in page["PriceList"]:
            product = json.loads(document)
            if usage.fullmatch(str(_at(product, "product", "attributes").get("usagetype"))):
                yield from _dollars_of_product(product)


def _dollars_of_product(product: Mapping[str, Any]) -> Iterator[Decimal]:
    for term in _at(product, "terms", "OnDemand").values():
        for dimension in _at(term, "priceDimensions").values():
            if dimension.get("unit") == "Hrs" and (amount := _at(dimension, "pricePerUnit").get("USD")):
                try:
                    yield Decimal(amount).normalize()
                except InvalidOperation as fault:
                    raise EstimatorError(f"AWS's price list says {amount!r}, which is no amount. {_OFFER}") from fault


def _at(value: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for name in path:
        value = value.get(name) or {}
    return value


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
