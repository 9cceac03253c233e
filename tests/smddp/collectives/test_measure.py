"""Every operation on two real ranks: right results, wrong ones told, and what a backend lacks named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smddp.collectives.measure import REDUCTIONS, Measurement
from smddp.collectives.operations import OPERATIONS

PROGRAM = """
import sys
import torch.distributed as dist
from smddp.collectives.program import Options, run_rank
{before}
options = Options(operations={names!r}, sizes={sizes!r}, seconds=0.001, json_lines={file!r}, plot={plot!r})
sys.exit(run_rank(options))
"""


def program(file: Path | None = None, *, names=(), sizes=(64, 1000), before="", plot: Path | None = None) -> str:
    written = [None if path is None else str(path) for path in (file, plot)]
    return PROGRAM.format(before=before, names=names, sizes=sizes, file=written[0], plot=written[1])


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_every_operation_has_the_right_result_with_each_reduction(run_ranks, tmp_path):
    file, plot = tmp_path / "all.jsonl", tmp_path / "all.png"
    ends = run_ranks(program(file, plot=plot))
    assert [end.code for end in ends] == [0, 0], ends[0].logged
    rows = read(file)
    assert [*dict.fromkeys(row["operation"] for row in rows)] == [each.name for each in OPERATIONS]
    reductions = {row["reduction"] for row in rows if row["operation"] == "all_reduce"}
    assert reductions == set(REDUCTIONS)
    assert all(row["seconds"] > 0 and row["lacks"] is None for row in rows)
    assert all(row["is_right"] is (None if row["operation"] == "barrier" else True) for row in rows)
    assert all(row["algorithm_bandwidth"] > 0 for row in rows if row["operation"] != "barrier")
    assert "all_to_all" in ends[0].printed
    assert not ends[1].printed
    assert plot.read_bytes().startswith(b"\x89PNG")


BROKEN = {
    "all_reduce": "dist.all_reduce",
    "broadcast": "dist.broadcast",
    "reduce_scatter": "dist.reduce_scatter",
    "all_gather": "dist.all_gather",
    "all_to_all": "dist.all_to_all",
    "scatter": "dist.scatter",
    "gather": "dist.gather",
    "send/recv": "dist.recv",
    "gather_object": "dist.gather_object",
}


def test_a_wrong_result_is_told_and_is_the_exit_code(run_ranks, tmp_path):
    # Each function does its work, and then its largest output is changed on one rank.
    before = f"""
import torch
def spoiled(function):
    def call(first, *rest, **options):
        outcome = function(first, *rest, **options)
        for value in (first, *rest):
            parts = value if isinstance(value, list) else [value]
            for place, part in enumerate(parts):
                if torch.is_tensor(part) and part.numel() > 1:
                    part[-1] += 1
                elif isinstance(part, dict):
                    parts[place] = dict(part, rank=-1)
        return outcome
    return call
for name in {sorted(BROKEN.values())!r}:
    setattr(dist, name.removeprefix("dist."), spoiled(getattr(dist, name.removeprefix("dist."))))
"""
    file = tmp_path / "wrong.jsonl"
    ends = run_ranks(program(file, names=tuple(BROKEN), sizes=(256,), before=before))
    assert [end.code for end in ends] == [1, 1], ends[0].logged
    assert {row["operation"]: row["is_right"] for row in read(file)} == dict.fromkeys(BROKEN, False)
    assert "WRONG" in ends[0].printed


def test_what_a_backend_lacks_is_named_and_the_rest_is_measured(run_ranks, tmp_path):
    before = """
def refuse(*_, **__):
    raise RuntimeError("ProcessGroupGloo does not support alltoall\\nbacktrace")
dist.all_to_all = refuse
"""
    file = tmp_path / "lacks.jsonl"
    ends = run_ranks(program(file, names=("all_to_all", "barrier"), before=before))
    assert [end.code for end in ends] == [0, 0], ends[0].logged
    lacking, barrier = read(file)
    assert (lacking["lacks"], lacking["seconds"]) == ("ProcessGroupGloo does not support alltoall", None)
    assert barrier["seconds"] > 0
    assert "gloo lacks all_to_all: ProcessGroupGloo does not support alltoall" in ends[0].printed


_FAILS_ON_ONE = """
import dataclasses
import smddp.collectives.measure as operation
import smddp.collectives.program as own
def prepare(setting, size, reduction):
    def run():
        if setting.rank == 1:
            raise RuntimeError("broken here")
    return operation.Call(run, lambda: True, size)
own.OPERATIONS = (operation.Operation(name="barrier", prepare=prepare),)
"""


def test_an_operation_that_fails_on_one_rank_alone_ends_all(run_ranks):
    ends = run_ranks(program(before=_FAILS_ON_ONE))
    assert all(end.code != 0 for end in ends)
    assert "barrier failed on 1 of 2 ranks, not on rank 0" in ends[0].logged
    assert "here, on rank 1: broken here" in ends[1].logged


def test_bandwidths_are_those_of_nccl_tests():
    measured = Measurement(
        operation="all_reduce",
        reduction="SUM",
        backend="nccl",
        device="cuda",
        ranks=8,
        size=8_000_000,
        seconds=1e-4,
        bus_factor={each.name: each for each in OPERATIONS}["all_reduce"].bus_factor(8),
    )
    assert measured.algorithm_bandwidth == pytest.approx(80e9)
    assert measured.bus_bandwidth == pytest.approx(140e9)
