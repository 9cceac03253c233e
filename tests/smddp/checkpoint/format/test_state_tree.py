"""A state that was taken apart and put together is the same to the last type."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint.format.state_tree import flatten, unflatten
from smddp.checkpoint.format.tensors import Layout
from smddp.errors import CheckpointError
from tests.smddp.checkpoint.by_hand import plain


def through_files(state: object) -> Any:
    """Take apart, copy, put together: as a checkpoint does."""
    skeleton, tensors = flatten(state, path="state")
    layout = Layout.of(tensors)
    assert Layout.parse(layout.header, layout.size) == layout
    copies = {name: plain(tensor).clone() for name, tensor in tensors.items()}
    return unflatten(json.loads(json.dumps(skeleton, allow_nan=False)), copies)


def assert_same(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert torch.equal(left.nan_to_num(), right.nan_to_num())
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        assert [type(key) for key in left] == [type(key) for key in right]
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right or (math.isnan(left) and math.isnan(right))
        assert str(left) == str(right)  # -0.0


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.integers(2**63, 2**200)
KEYS = st.text() | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text()) | st.just("$")
LEAVES = SCALARS | st.builds(torch.full, st.tuples(st.integers(0, 3)), st.floats(width=32))
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=20,
)


@given(state=STATES)
def test_any_nesting_comes_back(state: object) -> None:
    assert_same(through_files(state), state)


@pytest.mark.parametrize(
    "state",
    [
        np.arange(6).reshape(2, 3),
        np.array(5.0),
        np.float64(0.1),
        np.float32("nan"),
        np.int64(-5),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.arange(10)[::-2],
        np.asfortranarray(np.eye(3)),
        np.empty((0, 2), dtype=np.uint16),
        Counter({30: 1, 80: 2}),
        {"$": "tuple", "items": [1]},
        {1: "int", "1": "text", 1.5: "float", None: "none", (1, "a"): "tuple"},
        {True: 1},
        {"\ud800": "a lone surrogate"},
        OrderedDict([("b", 1), ("a", 2)]),
    ],
    ids=repr,
)
def test_comes_back_with_its_type(state: object) -> None:
    assert_same(through_files(state), state)


def adam_after_a_step() -> torch.optim.Optimizer:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(
        [{"params": [model.weight], "lr": 0.5}, {"params": [model.bias]}], betas=(0.8, 0.9), amsgrad=True
    )
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return optimizer


SCHEDULERS: dict[str, Any] = {
    "multi step": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 2, 5]),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[3],
    ),
}


@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers_come_back(make: Any) -> None:
    optimizer = adam_after_a_step()
    scheduler = make(optimizer)
    state = scheduler.state_dict()
    back = through_files(state)
    assert_same(back, state)
    scheduler.load_state_dict(back)


def test_optimizers_come_back() -> None:
    optimizer = adam_after_a_step()
    back = through_files(optimizer.state_dict())
    assert_same(back, optimizer.state_dict())
    optimizer.load_state_dict(back)


def test_a_grad_scaler_comes_back() -> None:
    state = {"scale": 65536.0, "growth_factor": 2.0, "growth_interval": 2000, "_growth_tracker": 0}
    assert_same(through_files(state), state)


def test_a_module_keeps_the_versions_of_its_modules() -> None:
    state = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).state_dict()
    back = through_files(state)
    assert_same(back, state)
    assert_same(back._metadata, state._metadata)
    assert back._metadata["1"]["version"] == 2


def test_the_names_in_the_file_are_those_of_the_state_dict() -> None:
    _, tensors = flatten(torch.nn.Sequential(torch.nn.Linear(2, 2)).state_dict(), path="model")
    assert sorted(tensors) == ["0.bias", "0.weight"]


def test_names_that_collide_are_told_apart() -> None:
    state = {
        "a.b": torch.zeros(1),
        "a": {"b": torch.ones(1)},
        "__metadata__": torch.full((1,), 2.0),
        "": torch.full((1,), 3.0),
    }
    assert_same(through_files(state), state)


def test_a_name_that_is_no_text_becomes_one() -> None:
    state = {"\ud800": torch.zeros(1), "?": torch.ones(1)}
    _, tensors = flatten(state, path="model")
    assert [name.encode() for name in tensors] == [b"?", b"?#2"]
    assert_same(through_files(state), state)


def test_tied_weights_are_saved_once_and_stay_tied() -> None:
    tied = torch.nn.Linear(4, 4, bias=False)
    model = torch.nn.Sequential(tied, torch.nn.ReLU(), tied)
    _, tensors = flatten(model.state_dict(), path="model")
    assert len(tensors) == 1
    assert_same(through_files(model.state_dict()), model.state_dict())


def test_different_views_of_one_memory_come_back_with_their_own_values() -> None:
    memory = torch.arange(12.0)
    state = {
        "all": memory,
        "first": memory[:4],
        "second": memory[4:8],
        "matrix": memory.view(3, 4),
        "turned": memory.view(3, 4).t(),
        "bits": memory.view(torch.int32),
    }
    assert_same(through_files(state), state)


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({1, 2}, "a set"),
        (b"bytes", "a bytes"),
        (1j, "a complex"),
        (Path("x"), "Path"),
        (defaultdict(int), "a collections.defaultdict"),
        (Pair(1, 2), "Pair"),
        (lambda: None, "a function"),
        (object(), "an object"),
        (torch.float32, "a torch.dtype"),
        (torch.zeros(2, dtype=torch.complex128), "of torch.complex128"),
        (torch.zeros(2).to_sparse(), "layout torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "meta"),
        (np.array(["text"]), "a numpy array of <U4"),
        (np.array([object()]), "a numpy array of object"),
        (np.longdouble(1), "a numpy array of"),
        (np.array([1], dtype=">i4"), "a numpy array of >i4"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_saved_is_named_with_its_place(value: object, kind: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        flatten({"state": {3: {"foo": [0, value]}}}, path="optimizer")
    assert str(caught.value).startswith("optimizer.state.3.foo.1 is ")
    assert kind in str(caught.value)


def test_a_key_that_cannot_be_saved_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"optimizer.state, the key b'x' is a bytes"):
        flatten({"state": {b"x": 1}}, path="optimizer")


def test_a_tag_that_is_not_known_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"'set'.*install a newer one"):
        unflatten({"$": "set", "items": []}, {})
