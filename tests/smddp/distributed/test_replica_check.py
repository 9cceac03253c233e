"""Replicas that differ in one bit are found and named; replicas that differ as they may are left alone."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.torch_version import TorchVersion

from smddp import Trainer
from smddp.distributed import replica_check
from smddp.distributed.replica_check import ReplicaCheck, hash_of
from smddp.job import Job

HOST = socket.gethostname()
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    dtype=st.sampled_from(TYPES),
    block=st.sampled_from([2, 16, 2**10]),
    piece=st.sampled_from([1, 256, 2**20]),
    data=st.data(),
)
def test_each_single_bit_changes_the_hash(
    sizes: list[int], dtype: torch.dtype, block: int, piece: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_check, "_CPU_BLOCK", block)
        patch.setattr(replica_check, "_PIECE", piece)
        replica_check._weights.cache_clear()
        tensors = [torch.zeros(size, dtype=dtype) for size in sizes]
        content = torch.cat([each.view(torch.uint8) for each in tensors])
        before = hash_of(tensors)
        if len(content):
            place, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
            position = 0
            for each in tensors:
                own = each.view(torch.uint8)
                if position <= place < position + len(own):
                    own[place - position] ^= 1 << bit
                position += len(own)
            assert hash_of(tensors) != before
        assert hash_of([*tensors, torch.zeros(1, dtype=dtype)]) != before
    replica_check._weights.cache_clear()


def test_bits_count_and_not_values() -> None:
    def differ(one: torch.Tensor, other: torch.Tensor) -> bool:
        return hash_of([one]) != hash_of([other])

    nans = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert differ(nans[:1], nans[1:])
    assert differ(torch.tensor(0.0), torch.tensor(-0.0))
    assert differ(torch.zeros(2, 3), torch.zeros(3, 2))
    assert differ(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert differ(torch.tensor([1, 2]), torch.tensor([2, 1]))
    assert (replica_check._weights(torch.device("cpu")) & 1).all()  # only an odd weight keeps each bit
    top = torch.tensor([-(2**31), 0, 0], dtype=torch.int32)
    assert differ(torch.zeros(3, dtype=torch.int32), top + top.roll(1))  # 2**63 twice would cancel
    matrix = torch.arange(6.0).reshape(2, 3)
    assert not differ(matrix, matrix.t().contiguous().t())  # the layout in memory may differ
    number = torch.tensor([1 + 2j])
    assert not differ(number.conj(), torch.tensor([1 - 2j]))  # nor whether a view conjugates or negates
    assert not differ(torch._neg_view(matrix), -matrix)
    nothing = torch.empty(0)
    assert hash_of([]) == hash_of([nn.UninitializedParameter(), torch.eye(2).to_sparse()]) != hash_of([nothing])


@pytest.mark.parametrize(
    ("equal_at", "told"),
    [
        (None, "No earlier step of this attempt was compared."),
        (6, "equal at step 6."),
        (8, "equal when the step ended."),
    ],
)
def test_the_last_comparison_is_told(equal_at: int | None, told: str) -> None:
    check = ReplicaCheck.__new__(ReplicaCheck)
    check._equal_at = equal_at
    assert told in check._describe(8, {"weight": [[0], [1]]}, ("algo-1", "algo-2"))


@pytest.mark.parametrize("value", [0, 1.5, True])
def test_a_number_of_steps_is_checked(tmp_path: Path, value: Any) -> None:
    job, model = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")}), nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"check_replicas=.* give a whole number of 1 or more"):
        Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), check_replicas=value)


PROGRAM = """
import dataclasses
import json
import logging
import os
import sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
import smddp
from smddp.checkpoint import list_checkpoints
from smddp.errors import ReplicasDifferError

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 1)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return self.head(self.norm(self.frozen(self.embedding(x)) * self.scale))

def flip(tensor, bit):
    tensor.detach().reshape(-1).numpy().view("uint8")[3 % tensor.nbytes] ^= 1 << (bit % 8)

warned = []
class Keep(logging.Handler):
    def emit(self, record):
        warned.append(record.getMessage())
logging.getLogger("smddp.distributed.replica_check").addHandler(Keep())

def train(job, plan):
    warned.clear()
    torch.manual_seed(1)
    model = Model()
    trainer = smddp.Trainer(
        job, model, torch.optim.Adam(model.parameters(), lr=0.01), ema=0.9, check_replicas=plan.get("every"),
        on_nonfinite=plan.get("on_nonfinite"),
        checkpoints=smddp.CheckpointPolicy(every=plan.get("saves"), seconds=None),
    )
    data = TensorDataset(torch.arange(240) % 8)
    loader = trainer.loader(data, batch_size=24)
    last, error = 0, ""
    try:
        for epoch in trainer.epochs(1):
            for (batch,) in trainer.batches(loader):
                trainer.step(trainer.model(batch + (job.cluster.rank > 9)).square().mean())
                last = trainer.steps
                if trainer.steps == plan["step"] and job.cluster.rank in plan["ranks"]:
                    parts = {**dict(model.named_parameters()), **dict(model.named_buffers())}
                    average = trainer._trained._average.module
                    parts |= {"ema: " + name: each for name, each in average.named_parameters()}
                    for name in plan["names"]:
                        flip(parts[name], plan.get("bit", 7))
                if plan.get("evaluates"):
                    with torch.no_grad():  # in training mode: BatchNorm's statistics differ between the ranks
                        for _ in range((job.cluster.rank + trainer.steps) % 3):  # or change on one rank only
                            model(batch)
    except ReplicasDifferError as raised:
        error = str(raised)
    trainer._run._open.checkpointer.finish()
    shared = trainer.gather(model.norm.running_mean[None])
    found = {
        "last": last, "error": error, "warned": list(warned), "shared": bool((shared == shared[0]).all()),
        "saved": sorted(each.step for each in list_checkpoints(str(job.checkpoint_dir))),
    }
    print(json.dumps(found))

def main(job):
    for number, plan in enumerate(json.loads(os.environ["PLANS"])):
        train(dataclasses.replace(job, checkpoint_dir=job.checkpoint_dir / str(number)), plan)

smddp.run(main)
"""

Found = list[dict[str, Any]]


@pytest.fixture
def train(run_ranks: Callable[..., list[Any]], tmp_path: Path) -> Callable[..., list[Found]]:
    """Trains on so many ranks after each plan, and returns for each plan what each rank found."""

    def run(world_size: int, *plans: dict[str, Any]) -> list[Found]:
        own = {"SMDDP_RUN_DIR": str(tmp_path / "run"), "PLANS": json.dumps(plans)}
        ranks = run_ranks(PROGRAM, [own] * world_size)
        assert [rank.code for rank in ranks] == [0] * world_size, ranks
        return list(zip(*([json.loads(line) for line in rank.printed.splitlines()] for rank in ranks), strict=True))  # type: ignore[arg-type]

    return run


BOTH = "at step {} the ranks have different weights: rank 0 on {host}, rank 1 on {host} differ from each other in {}"


@pytest.mark.slow
def test_a_flipped_bit_ends_both_ranks_with_its_name_and_no_further_checkpoint(
    train: Callable[..., list[Found]],
) -> None:
    weight = {"ranks": [1], "names": ["head.weight"]}
    nothing = {"step": 0, "ranks": [], "names": [], "every": 1, "saves": 2, "evaluates": True}
    due, saved, off, several, frozen, average, undisturbed = train(
        2,
        {**weight, "step": 3, "every": 4, "saves": 2},
        {**weight, "step": 4, "every": 100, "saves": 4},
        {**weight, "step": 4, "every": None, "saves": 4},
        {"step": 1, "ranks": [0], "names": ["head.weight", "head.bias", "embedding.weight"], "every": 4},
        {"step": 4, "ranks": [1], "names": ["frozen.bias"], "every": 5},
        {"step": 9, "ranks": [1], "names": ["ema: norm.weight"], "every": 5},
        nothing,
    )
    for found in due:
        assert found["error"].startswith(BOTH.format(4, "head.weight. They were equal at step 2. This", host=HOST))
        assert (found["last"], found["saved"]) == (3, [2])
    for found in saved:
        assert found["error"].startswith(BOTH.format(4, "head.weight. No earlier step of this attempt was", host=HOST))
        assert (found["last"], found["saved"]) == (4, [])
    assert [(found["error"], found["saved"]) for found in off] == [("", [4, 8, 10])] * 2
    all_of_them = "embedding.weight (also in head.weight, head.bias, ema: embedding.weight and 2 more). No"
    assert all(found["error"].startswith(BOTH.format(4, all_of_them, host=HOST)) for found in several)
    assert all(found["error"].startswith(BOTH.format(5, "frozen.bias. No", host=HOST)) for found in frozen)
    assert all(found["error"].startswith(BOTH.format(10, "ema: norm.weight. They", host=HOST)) for found in average)
    assert all(found["error"] == "" and found["warned"] == [] and found["shared"] for found in undisturbed)


@pytest.mark.slow
@pytest.mark.skipif(TorchVersion(torch.__version__) < "2.6", reason="on_nonfinite needs PyTorch 2.6")
def test_a_huge_weight_is_found_before_it_makes_all_weights_nan(train: Callable[..., list[Found]]) -> None:
    weight = {"ranks": [1], "names": ["head.weight"], "step": 4, "every": 100}
    # A weight of 1e38 makes the loss inf.
    [huge] = train(2, {**weight, "bit": 6, "on_nonfinite": "skip"})
    assert all(found["error"].startswith(BOTH.format(4, "head.weight. No", host=HOST)) for found in huge), huge


@pytest.mark.slow
def test_of_three_ranks_the_odd_one_is_named_and_a_buffer_is_only_a_warning(train: Callable[..., list[Found]]) -> None:
    weight, buffer, statistic = train(
        3,
        {"step": 3, "ranks": [2], "names": ["norm.weight"], "every": 4},
        {"step": 3, "ranks": [1], "names": ["scale"], "every": 4},
        {"step": 4, "ranks": [0], "names": ["norm.running_mean"], "every": 100, "saves": 4},
    )
    for found in weight:
        assert f": rank 2 on {HOST} differs from the other 2 ranks in norm.weight. No earlier" in found["error"]
    assert all(found["error"] == "" and found["saved"] == [10] and found["shared"] for found in buffer)
    assert len(buffer[0]["warned"]) == 1, buffer[0]["warned"]
    assert buffer[0]["warned"][0].startswith(
        "step 4: since the step before, one bit of the buffer scale has changed, on rank 1 on "
    )
    assert [found["warned"] for found in buffer[1:]] == [[], []]
    assert statistic[0]["warned"][0].startswith(
        "step 4: since the step before, one bit of the buffer norm.running_mean has"
    )
    assert ", on rank 0 on " in statistic[0]["warned"][0]
    assert all(found["shared"] for found in statistic)
