"""AWS's Price List API, whose answers botocore's stubber gives in their real form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from estimators.errors import EstimatorError
from estimators.plan.prices import price_table

TYPE = "ml.g5.xlarge"


def product(usage: str, dollars: str, component: str) -> str:
    """A document of GetProducts."""
    sku = f"SKU{abs(hash(usage)) % 10**8}"
    return json.dumps(
        {
            "product": {
                "productFamily": "ML Instance",
                "attributes": {
                    "instanceName": TYPE,
                    "regionCode": "eu-west-1",
                    "location": "EU (Ireland)",
                    "locationType": "AWS Region",
                    "component": component,
                    "platoinstancetype": component,
                    "usagetype": usage,
                    "operation": "RunInstance",
                    "servicecode": "AmazonSageMaker",
                    "servicename": "Amazon SageMaker",
                    "vCpu": "4",
                    "gpu": "1",
                },
                "sku": sku,
            },
            "serviceCode": "AmazonSageMaker",
            "terms": {
                "OnDemand": {
                    f"{sku}.JRTCKXETXF": {
                        "priceDimensions": {
                            f"{sku}.JRTCKXETXF.6YS6EN2CT7": {
                                "unit": "Hrs",
                                "endRange": "Inf",
                                "beginRange": "0",
                                "description": f"${dollars} per {component} {TYPE} hour in EU (Ireland)",
                                "appliesTo": [],
                                "rateCode": f"{sku}.JRTCKXETXF.6YS6EN2CT7",
                                "pricePerUnit": {"USD": dollars},
                            }
                        },
                        "sku": sku,
                        "effectiveDate": "2026-11-01T00:00:00Z",
                        "offerTermCode": "JRTCKXETXF",
                        "termAttributes": {},
                    }
                }
            },
            "version": "20261101000000",
            "publicationDate": "2026-11-01T00:00:00Z",
        }
    )


TRAINING = product("EUW1-Train:ml.g5.xlarge", "1.5700000000", "Training")
OTHERS = [
    product("EUW1-Processing-GeoTrain:ml.g5.xlarge", "1.5500000000", "Processing"),
    product("EUW1-Host:ml.g5.xlarge", "1.5800000000", "Hosting"),
    product("EUW1-Notebk:ml.g5.xlarge", "1.5900000000", "Notebook"),
    product("EUW1-TrainingWarmPool:ml.g5.xlarge", "1.6000000000", "Training"),
]


class Session:
    """A session of the SDK in Ireland, whose pricing client is stubbed."""

    boto_region_name = "eu-west-1"

    def __init__(self) -> None:
        self.client = boto3.client("pricing", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
        self.asked_in: list[str] = []
        self.boto_session = SimpleNamespace(client=self._client)

    def _client(self, name: str, region_name: str) -> Any:
        self.asked_in.append(f"{name} in {region_name}")
        return self.client


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def stub(session: Session) -> Iterator[Stubber]:
    with Stubber(session.client) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


def answer(stub: Stubber, documents: list[str], *, token: str | None = None, more: str | None = None) -> None:
    filters = [
        {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "eu-west-1"},
        {"Type": "TERM_MATCH", "Field": "instanceName", "Value": TYPE},
    ]
    expected = {"ServiceCode": "AmazonSageMaker", "Filters": filters, **({"NextToken": token} if token else {})}
    given = {"FormatVersion": "aws_v1", "PriceList": documents, **({"NextToken": more} if more else {})}
    stub.add_response("get_products", given, expected)


def test_the_price_of_training_in_the_jobs_region_is_taken(session: Any, stub: Stubber) -> None:
    answer(stub, OTHERS[:3], more="page 2")
    answer(stub, [TRAINING, *OTHERS[3:]], token="page 2")
    table = price_table("aws", [TYPE, TYPE], session)
    assert {name: price.on_demand for name, price in table.prices.items()} == {TYPE: Decimal("1.57")}
    assert table.source == "AWS's price list for eu-west-1"
    assert session.asked_in == ["pricing in us-east-1"]


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        (OTHERS, "AWS has no price for training on ml.g5.xlarge in eu-west-1"),
        ([TRAINING, product("Train:ml.g5.xlarge", "2.0", "Training")], r"several prices .*: \$1.57, \$2"),
    ],
)
def test_a_price_that_is_not_certain_is_none(session: Any, stub: Stubber, documents: list[str], said: str) -> None:
    import re

    answer(stub, documents)
    table = price_table("aws", [TYPE], session)
    assert not table.prices
    assert re.search(said, table.missing[TYPE])


def test_a_missing_right_is_said(session: Any, stub: Stubber) -> None:
    stub.add_client_error("get_products", "AccessDeniedException", "User: x is not authorized", 400)
    with pytest.raises(EstimatorError, match=r"not authorized.* needs the right pricing:GetProducts. Give a table"):
        price_table("aws", [TYPE], session)


def test_missing_credentials_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with pytest.raises(EstimatorError, match=r"AWS can't be asked for its prices: Unable to locate credentials\. Sign"):
        price_table("aws", [TYPE], None)


def test_a_missing_region_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(EstimatorError, match="Set AWS_DEFAULT_REGION"):
        price_table("aws", [TYPE], None)
