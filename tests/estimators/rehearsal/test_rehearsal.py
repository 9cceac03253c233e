"""The result of a rehearsal, as text and as a notebook's table."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import moto.ec2
import pytest
from sagemaker.instance_group import InstanceGroup

from estimators.errors import EstimatorError, TrainingJobFailed, TrainingJobStopped
from estimators.instances import _GPU_MIB, families_with, gpu_bytes
from estimators.plan import Topology
from estimators.rehearsal import Rehearsal
from estimators.rehearsal.failure import describe_failure
from estimators.rehearsal.rehearsal import _smallest_gpu, _warn_of_memory


def test_a_notebook_shows_a_table_of_what_the_text_says() -> None:
    rehearsal = Rehearsal(
        topology="1 × ml.g5.xlarge",
        ranks=1,
        runtime="PyTorch 2.8, Python 3.12",
        seconds=12.0,
        steps=40,
        resumed_at=20,
        metrics={"loss": 0.5},
        model_bytes=1000,
        checkpoint_bytes=2000,
        memory_bytes=3000,
        least_gpu_bytes=3 << 30,
        gpu=("ml.g5.xlarge", 22888 << 20),
        samples=("a sample of training",),
    )
    shown = rehearsal._repr_html_()
    assert shown.count("<tr") == 8
    for part in (
        "1 × ml.g5.xlarge, as 1 rank, with PyTorch 2.8, Python 3.12",
        "40 in 12 s",
        "resumed from the checkpoint of step 20 (2 kB)",
        "model.tar.gz 1 kB",
        "rank 0 needs at least 3 GiB of GPU memory plus activations (a GPU of ml.g5.xlarge has 22.4 GiB)",
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
    known = {family: mib for mib, families in _GPU_MIB.items() for family in families}
    assert {family: mib for family, mib in known.items() if family in ec2} == {
        name: ec2[name] for name in known & ec2.keys()
    }
    assert set(known) - set(ec2) == {"p3"}  # moto's region has none: 16 GiB, by EC2's page
    assert set(ec2) - set(known) == {"g6f", "gr6f"}  # parts of a GPU, of several sizes
    assert [gpu_bytes(name) for name in ("ml.g5.12xlarge", "ml.m5.large", "local")] == [22888 << 20, None, None]
    assert families_with(100 << 30) == ["ml.p5e", "ml.p5en", "ml.p6-b200", "ml.p6-b300"]


@pytest.mark.parametrize(
    ("hosts", "gpu"),
    [
        ({"instance_preferences": ["ml.p4d.24xlarge", "ml.g5.xlarge"], "instance_count": 1}, "ml.g5.xlarge"),
        ({"instance_type": "ml.m5.large", "instance_count": 1}, None),
        ({"instance_type": "ml.g6f.large", "instance_count": 1}, None),
        (
            {
                "instance_groups": (
                    groups := [InstanceGroup("a", "ml.g5.xlarge", 1), InstanceGroup("b", "ml.p5.48xlarge", 2)]
                ),
                "distribution": {"torch_distributed": {"enabled": True}, "instance_groups": groups[1:]},
            },
            "ml.p5.48xlarge",
        ),
    ],
)
def test_the_smallest_gpu_that_gets_ranks_is_compared(hosts: dict[str, Any], gpu: str | None) -> None:
    found = _smallest_gpu(hosts, Topology.of(hosts))
    assert found == (None if gpu is None else (gpu, gpu_bytes(gpu)))


def test_a_job_that_needs_more_than_its_gpus_have_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    gpu = ("ml.g5.xlarge", 22888 << 20)
    _warn_of_memory(20 << 30, gpu, is_divided=False)
    _warn_of_memory(1 << 50, None, is_divided=False)
    assert not caplog.records
    _warn_of_memory(90 << 30, gpu, is_divided=False)
    _warn_of_memory(1 << 40, gpu, is_divided=True)
    begin = (
        "the job may run out of GPU memory: with the types and the optimizer of this machine, rank 0 needs at least "
    )
    assert [record.message for record in caplog.records] == [
        f"{begin}90 GiB beside activations, and a GPU of ml.g5.xlarge has 22.4 GiB; choose a type with larger GPUs "
        "(ml.g7e, ml.p5e, ml.p5en, ml.p6-b200, ml.p6-b300), or divide the model with parallel=smddp.Sharded(...)",
        f"{begin}1024 GiB beside activations, and a GPU of ml.g5.xlarge has 22.4 GiB; divide the model among more "
        "ranks",
    ]


@pytest.mark.parametrize(
    ("kind", "secondary", "attempt", "logs", "said"),
    [
        (TrainingJobFailed, "Failed", 1, True, "failed: why.*: only the log above remains. To repeat it"),
        (TrainingJobFailed, "Failed", 2, False, "failed, when it resumed from .* first attempt: why.*logs=True"),
        (TrainingJobStopped, "Stopped", 1, True, "failed: why"),
        (TrainingJobStopped, "MaxRuntimeExceeded", 2, True, "given up after 60 s, .* end after 40 optimizer steps"),
    ],
)
def test_a_failure_names_what_is_left_of_a_rehearsal(
    kind: type[TrainingJobFailed], secondary: str, attempt: int, logs: bool, said: str
) -> None:
    fault = kind(
        "digits-1 failed: why\nIts log: TrainingJob.attach('digits-1').logs(), or CloudWatch",
        job_name="digits-1",
        status="Failed",
        secondary_status=secondary,
        reason="why",
    )
    error = describe_failure(
        fault, "train.py (2 × ml.g5.xlarge)", "the frames", attempt=attempt, steps=20, seconds=60, logs=logs
    )
    assert type(error) is (EstimatorError if secondary == "MaxRuntimeExceeded" else kind)
    assert re.search(said, str(error), re.DOTALL)
    assert str(error).startswith("The rehearsal ")
    assert "attach" not in str(error)
    assert "CloudWatch" not in str(error)
