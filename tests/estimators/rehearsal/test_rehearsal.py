"""The result of a rehearsal, as text and as a notebook's table."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import moto.ec2
import pytest

from estimators.errors import EstimatorError
from estimators.instances import _GPU_MIB, gpu_bytes
from estimators.plan import Topology
from estimators.rehearsal import Rehearsal
from estimators.rehearsal.rehearsal import _check_fits, _smallest_gpu


def test_a_notebook_shows_a_table_of_what_the_text_says() -> None:
    rehearsal = Rehearsal(
        topology="1 × ml.g5.xlarge",
        runtime="PyTorch 2.8, Python 3.12",
        seconds=12.0,
        steps=40,
        resumed_at=20,
        metrics={"loss": 0.5},
        model_bytes=1000,
        checkpoint_bytes=2000,
        memory_bytes=3000,
        held_bytes=3 << 30,
        gpu=("ml.g5.xlarge", 22888 << 20),
        samples=("a sample of training",),
    )
    shown = rehearsal._repr_html_()
    assert shown.count("<tr") == 8
    for part in (
        "1 × ml.g5.xlarge, with PyTorch 2.8, Python 3.12",
        "40 in 12 s",
        "resumed from the checkpoint of step 20",
        "holds 3.0 GiB beside activations, of 22.4 GiB of a GPU of ml.g5.xlarge",
        "loss 0.5",
        "a sample of training",
    ):
        assert part in shown


def test_the_memory_of_gpus_is_what_ec2_says() -> None:
    types = Path(moto.ec2.__file__).parent / "resources" / "instance_types.json.gz"
    ec2 = {
        name.partition(".")[0]: gpu["MemoryInfo"]["SizeInMiB"]
        for name, described in json.loads(gzip.decompress(types.read_bytes())).items()
        for gpu in described.get("GpuInfo", {}).get("Gpus", [])
    }
    known = {family: mib for family, mib in _GPU_MIB.items() if family in ec2}
    assert known == {family: ec2[family] for family in known}
    assert set(_GPU_MIB) - set(ec2) == {"p3"}  # moto's region has none: 16 GiB, by EC2's page
    assert set(ec2) - set(_GPU_MIB) == {"g6f", "gr6f"}  # parts of a GPU, of several sizes
    assert [gpu_bytes(name) for name in ("ml.g5.12xlarge", "ml.m5.large", "local")] == [22888 << 20, None, None]


def test_the_smallest_gpu_must_hold_what_a_rank_holds() -> None:
    topology = Topology.of({"instance_preferences": ["ml.p4d.24xlarge", "ml.g5.xlarge"], "instance_count": 1})
    gpu = _smallest_gpu(topology)
    assert gpu == ("ml.g5.xlarge", 22888 << 20)
    assert _smallest_gpu(Topology.of({"instance_type": "ml.m5.large", "instance_count": 1})) is None
    _check_fits(22888 << 20, gpu)
    with pytest.raises(
        EstimatorError,
        match=r"The job does not fit: rank 0 holds 23\.0 GiB of weights, gradients and optimizer state, without "
        r"activations, and a GPU of ml\.g5\.xlarge has 22\.4 GiB\. Choose a larger GPU, or divide the model with",
    ):
        _check_fits(23 << 30, gpu)
