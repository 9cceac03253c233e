from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smddp.errors import RemoteFunctionError
from smddp.remote_function import travelling_values


@dataclass(frozen=True)
class Point:
    x: float
    norm: float = field(init=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x < 0")
        object.__setattr__(self, "norm", self.x * 2)


@dataclass
class Other:
    """No annotation names it."""


DATACLASSES = {"Point": Point}


def write(value: Any, place: Path, **options: Any) -> bytes:
    document, _ = travelling_values.write(
        value, place, **{"serializer": "safetensors", "called": "arguments", "dataclasses": DATACLASSES} | options
    )
    return document


def read(place: Path, **options: Any) -> Any:
    return travelling_values.read(
        place,
        **{"serializer": "safetensors", "check": lambda document: None, "dataclasses": DATACLASSES} | options,
    )


def test_values_come_back_with_their_types(tmp_path: Path) -> None:
    value = {
        "plain": [None, True, 2**70, -0.5, "\ud800 ü", float("-inf")],
        "keys": {1: "a", ("b", 2): [], "$": Path("c/d")},
        "ordered": OrderedDict(b=1, a=2),
        "points": (Point(1.5), Point(0.0)),
        "array": np.arange(6, dtype=np.uint8).reshape(2, 3).T,
        "scalar": np.float32(0.1),
    }
    write(value | {"tensor": torch.arange(4.0).view(2, 2).t(), "part": torch.ones(3, 4)[1]}, tmp_path / "a")
    back = read(tmp_path / "a")
    array, tensor, part = back.pop("array"), back.pop("tensor"), back.pop("part")
    assert (array.tolist(), array.dtype) == ([[0, 3], [1, 4], [2, 5]], np.uint8)
    assert (tensor.tolist(), part.tolist()) == ([[0, 2], [1, 3]], [1, 1, 1, 1])
    del value["array"]
    assert back == value
    assert (type(back["scalar"]), type(back["ordered"])) == (np.float32, OrderedDict)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"layers": [1, threading.Lock()]}, r"arguments\.layers\.1 is a _thread\.lock, .* paths, and the dataclasses"),
        ({"point": Other()}, r"arguments\.point is a .*Other, which"),
        ({"n": 10**5000}, "arguments: Exceeds the limit"),
    ],
)
def test_what_cannot_travel_is_refused_with_its_place(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(RemoteFunctionError, match=message):
        write(value, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_list_in_itself_is_refused(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RemoteFunctionError, match="nested too deep, or contains itself"):
        write(endless, tmp_path / "a")


def test_what_is_too_large_neither_goes_nor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write([torch.ones(100)], tmp_path / "a")
    monkeypatch.setattr(travelling_values, "MOST_TENSOR_BYTES", 399)
    with pytest.raises(RemoteFunctionError, match=r"^arguments: 400 bytes, and at most 399 travel"):
        write([torch.ones(100)], tmp_path / "b")
    monkeypatch.setattr(travelling_values, "MOST_DOCUMENT_BYTES", 10)
    with pytest.raises(RemoteFunctionError, match=r"a\.json has more than 10 bytes"):
        read(tmp_path / "a")


def test_other_tensors_beside_the_document_are_refused(tmp_path: Path) -> None:
    write([torch.ones(2)], tmp_path / "a")
    write([torch.zeros(2)], tmp_path / "b")
    (tmp_path / "b.safetensors").replace(tmp_path / "a.safetensors")
    with pytest.raises(RemoteFunctionError, match="not the file that was written beside"):
        read(tmp_path / "a")


@pytest.mark.parametrize(
    "value",
    [
        {"$": "dataclass os:system", "value": {}},
        {"$": "dataclass Point", "value": {"x": 1}},
        {"$": "dataclass Point", "value": [1]},
        {"$": "Point", "value": {"x": 1, "norm": 2}},
        {"$": "path", "value": 1},
        {"$": "tensor", "name": "gone"},
        {"$": "dict", "items": [[[], 1]]},
        {"$": 1},
    ],
)
def test_a_document_of_nonsense_is_an_error_of_ours(tmp_path: Path, value: Any) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"value": value, "tensors": None}))
    with pytest.raises(RemoteFunctionError, match="a can't be put together"):
        read(tmp_path / "a")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"value": 1, "value": 2, "tensors": null}', "[" * 10**5])
def test_a_document_that_is_none_is_an_error_of_ours(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(RemoteFunctionError, match="a can't be put together"):
        read(tmp_path / "a")


@pytest.mark.parametrize("serializer", ["safetensors", "cloudpickle"])
def test_nothing_is_looked_at_before_somebody_vouches_for_it(tmp_path: Path, serializer: str) -> None:
    write([1], tmp_path / "a", serializer=serializer)

    def refuse(document: bytes) -> None:
        raise PermissionError

    with pytest.raises(PermissionError):
        read(tmp_path / "a", serializer=serializer, check=refuse)
    assert read(tmp_path / "a", serializer=serializer) == [1]


def test_what_cannot_be_pickled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RemoteFunctionError, match=r"arguments can't be pickled: .*lock"):
        write([threading.Lock()], tmp_path / "a", serializer="cloudpickle")
