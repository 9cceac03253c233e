from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from smddp import Trainer
from smddp.distributed import leave
from smddp.job import Job
from smddp.metrics import CsvFile


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    leave()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"accumulate": 1.5}, "accumulate=1.5 must be greater than 0, and a whole number"),
        ({"log_every": 0.5}, "log_every=0.5 must be greater than 0, and a whole number"),
        ({"accumulate": True}, "accumulate=True must be"),
        ({"ddp": {"comm_hook": "fp16"}}, r"is no DDPOptions: give ddp=smddp.DDPOptions\(...\)"),
        ({"profile": (1, 2)}, r"is no Profile: give profile=smddp.Profile\(...\)"),
        (
            {"checkpoints": 100},
            r"checkpoints=100 is no CheckpointPolicy: give checkpoints=smddp.CheckpointPolicy\(...\)",
        ),
        ({"trackers": CsvFile()}, "give a list of trackers, also of one"),
        ({"state": [1]}, "give each part by its name"),
    ],
)
def test_an_option_of_another_kind_is_refused_with_what_to_give(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    job, model = Job.detect({"SMDDP_RUN_DIR": str(tmp_path)}), nn.Linear(2, 1)
    with pytest.raises((TypeError, ValueError), match=told):
        Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
