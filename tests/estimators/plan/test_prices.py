"""Prices from a mapping, a file, and what is refused of them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from estimators.errors import EstimatorError
from estimators.plan.prices import HostPrice, price_table

TABLE = {
    "ml.g5.xlarge": HostPrice(on_demand=Decimal("1.408")),
    "ml.p4d.24xlarge": HostPrice(on_demand=Decimal("37.688"), spot=Decimal("11.3")),
}


def test_a_mapping_and_both_kinds_of_files_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(
        '{"ml.g5.xlarge": 1.408, "ml.p4d.24xlarge": {"on_demand": 37.688, "spot": "11.3"}}'
    )
    (tmp_path / "p.csv").write_text(
        "\ufeffinstance_type, on_demand, spot\nml.g5.xlarge, 1.408,\nml.p4d.24xlarge,37.688,11.3\n"
    )
    given: list[Any] = [
        {"ml.g5.xlarge": 1.408, "ml.p4d.24xlarge": {"on_demand": "37.688", "spot": 11.3}},
        tmp_path / "p.json",
        str(tmp_path / "p.csv"),
    ]
    for each in given:
        assert price_table(each, [], None).prices == TABLE


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, r"prices is 3\. Give a mapping"),
        ("prices.yaml", r"'prices.yaml', no file of prices. Give a .json or .csv file, or 'aws'"),
        ("nowhere.json", r"'nowhere.json': No such file or directory\. Give the path of a file of prices"),
        ({"ml.a.b": "cheap"}, r"prices: ml.a.b is 'cheap'\. Give dollars an hour"),
        ({"ml.a.b": -1}, "ml.a.b is -1"),
        ({"ml.a.b": float("nan")}, "ml.a.b is nan"),
        ({"ml.a.b": True}, "ml.a.b is True"),
        ({"ml.a.b": {"spot": 1}}, r"ml.a.b has spot\. Give dollars"),
        ({"ml.a.b": {"on_demand": 1, "spott": 1}}, "ml.a.b has on_demand, spott"),
        ({"ml.a.b": {"on_demand": 1, "spot": 5}}, "ml.a.b has the spot price 5, above 1 on demand"),
        ({"ml.a.b": 1e30}, r"ml.a.b is 1e\+30"),
        ({"ml.a.b": "1e999999"}, "ml.a.b is '1e999999'"),
        ("a\0b.json", "can't be read"),
    ],
)
def test_what_is_no_price_is_named(given: Any, said: str) -> None:
    with pytest.raises(EstimatorError, match=said):
        price_table(given, [], None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.json", '{"a": NaN}', "p.json: a is nan"),
        ("p.json", "{", "p.json is not JSON: .*Give {instance type"),
        ("p.json", '{"a": 100, "a": 1}', "p.json names a twice"),
        ("p.json", "[" * 100_000, "p.json is not JSON"),
        ("p.json", f'{{"a": {"1" * 5000}}}', "p.json is not JSON"),
        ("p.csv", f"instance_type,on_demand\na,{'1' * 200_000}\n", "p.csv is no CSV"),
        ("p.json", "[1]", r"p.json is \[1\], not a mapping"),
        ("p.csv", "type,price\na,1\n", "p.csv has the columns type, price. Its first line must name instance_type"),
        ("p.csv", "", r"has the columns \(none\)"),
        ("p.csv", "instance_type,on_demand\na,1\na,2\n", "two lines for a"),
        ("p.csv", "instance_type,on_demand\na,\n", r"p.csv: a has nothing\."),
        ("p.csv", "instance_type,on_demand\na,1,2\n", r"a line of 3"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_name(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(EstimatorError, match=said):
        price_table(tmp_path / name, [], None)
