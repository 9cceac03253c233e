"""The fingerprint of a weight tells any change of a bit, and does not depend on how the weight is divided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from smddp.checkpoint.format import frozen
from smddp.checkpoint.format.frozen import LeftOut, fingerprints
from smddp.checkpoint.format.state_tree import flatten, unflatten
from smddp.distributed import Ranks
from smddp.errors import CheckpointError

ALONE = Ranks(rank=0, world_size=1)
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.uint8, torch.bool, torch.float8_e4m3fn]
MANY = 2 * 2**16 + 77  # words: two whole rows of factors and a part of a third one


def fingerprint(weight: torch.Tensor) -> str:
    return fingerprints({"weight": weight}, ALONE, in_pieces=False)["weight"]


def drawn(dtype: torch.dtype, count: int = MANY) -> torch.Tensor:
    draw = torch.Generator().manual_seed(5)
    return torch.randint(0, 2, (count * dtype.itemsize,), generator=draw, dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_bit_counts(dtype: torch.dtype) -> None:
    weight = drawn(dtype)
    before = fingerprint(weight)
    assert fingerprint(weight.clone()) == before
    for byte in (0, 7, 2**16 * dtype.itemsize, weight.nbytes - 1):
        for bit in (0, 3, 7) if dtype is not torch.bool else (0,):
            weight.view(torch.uint8)[byte] ^= 1 << bit
            assert fingerprint(weight) != before
            weight.view(torch.uint8)[byte] ^= 1 << bit
    assert fingerprint(weight) == before


def test_the_order_of_rows_counts() -> None:
    weight = torch.randn(4, 2**16)
    assert fingerprint(weight) != fingerprint(weight[[1, 0, 2, 3]])


def test_strides_and_a_view_do_not_count() -> None:
    weight = torch.randn(300, 500)
    assert fingerprint(weight.t().contiguous().t()) == fingerprint(weight)
    assert fingerprint(torch.nn.Parameter(weight, requires_grad=False)) == fingerprint(weight)
    assert fingerprint(weight[:, 3]) == fingerprint(weight[:, 3].clone())
    assert fingerprint(torch.ones(1).expand(7)) == fingerprint(torch.ones(7))


def test_it_is_a_part_of_the_format_and_stays() -> None:
    assert fingerprint(torch.arange(70_000, dtype=torch.float32) / 3) == "7ec41bfbadfb08b6"
    assert fingerprint(torch.arange(10).to(torch.bfloat16)) == "5f9073eb2183bc70"
    assert fingerprint(torch.tensor(2.5)) == "3dcfe81631600000"
    assert fingerprint(torch.empty(0, 3)) == "0" * 16


def test_rows_at_a_time_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(5 * 2**16 + 9)
    one_at_a_time = fingerprint(weight)
    monkeypatch.setattr(frozen, "_CPU_ROWS", 3)
    assert fingerprint(weight) == one_at_a_time


DIVIDED = """
import itertools, torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from smddp.checkpoint.format.frozen import fingerprints
from smddp.distributed import Ranks

dist.init_process_group("gloo")
draw = torch.Generator().manual_seed(0)
meshes = [DeviceMesh("cpu", [0, 1, 2, 3]), DeviceMesh("cpu", [[0, 1], [2, 3]])]
KINDS = {(7, 300, 100): torch.float32, (3, 5): torch.bfloat16, (9,): torch.complex64, (): torch.half}
for shape, dtype in KINDS.items():
    whole = torch.randn(shape, generator=draw).to(dtype)
    kinds = [Replicate(), *map(Shard, range(len(shape)))]
    for mesh in meshes:
        for placements in itertools.product(kinds, repeat=mesh.ndim):
            divided = distribute_tensor(whole, mesh, placements)
            found = fingerprints({"divided": divided, "whole": whole}, Ranks.current(), in_pieces=True)
            assert found["divided"] == found["whole"], (shape, placements, found)
"""


def test_pieces_have_the_fingerprint_of_the_whole(run_ranks: Callable[..., Any]) -> None:
    ended = run_ranks(DIVIDED, [{}] * 4)
    assert [each.code for each in ended] == [0] * 4, ended


def test_what_stands_for_a_weight_is_kept_in_the_skeleton() -> None:
    left_out = LeftOut.of(torch.zeros(2, 3, dtype=torch.bfloat16), "00ff00ff00ff00ff")
    skeleton, tensors = flatten({"base": left_out, "adapter": torch.ones(2)}, path="model")
    assert list(tensors) == ["adapter"]
    assert skeleton["base"] == {"$": "frozen", "dtype": "bfloat16", "shape": [2, 3], "fingerprint": "00ff00ff00ff00ff"}
    assert unflatten(skeleton, tensors)["base"] == left_out


@pytest.mark.parametrize(
    "wrong", [{"dtype": 3}, {"shape": "2"}, {"shape": [-1]}, {"shape": [True]}, {"shape": None}, {"fingerprint": None}]
)
def test_what_is_malformed_is_refused(wrong: dict[str, Any]) -> None:
    right = {"$": "frozen", "dtype": "float32", "shape": [2], "fingerprint": "0" * 16}
    with pytest.raises(CheckpointError, match="is not described as it should be"):
        unflatten({**right, **wrong}, {})
