"""Prices from AWS's Price List API: on-demand training on an instance type in a region.

The API has no prices of managed spot training. Its answers are described in
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/price-changes.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from estimators.errors import EstimatorError
from estimators.plan.price_table import HostPrice, PriceTable

if TYPE_CHECKING:
    from estimators.sdk.library import Session

_API_REGION = "us-east-1"
"""One of the few regions with the API, which has the prices of all regions."""
_OFFER = "Give a table of prices, or a file, instead of 'aws'."


def aws_prices(instance_types: Collection[str], session: Session | None) -> PriceTable:
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
            f"AWS can't be asked for its prices: {str(fault).rstrip('.')}. Sign in (aws configure, or aws sso login). "
            f"{_OFFER}"
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
                yield from _dollars(product)


def _dollars(product: Mapping[str, Any]) -> Iterator[Decimal]:
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
