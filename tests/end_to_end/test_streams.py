"""Data that comes while a job runs: through pipes, and as files that are objects; the same on any number of hosts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker

Build = Callable[..., Estimator]


@pytest.fixture
def data(platform: LocalSageMaker) -> str:
    """Sixty records in five objects."""
    s3, prefix = platform.boto_session.client("s3"), f"streams-{time.time_ns()}/"
    for part in range(5):
        lines = [json.dumps({"n": number}) + "\n" for number in range(12 * part, 12 * part + 12)]
        s3.put_object(Bucket=platform.default_bucket, Key=f"{prefix}{part}.jsonl", Body="".join(lines).encode())
    return f"s3://{platform.default_bucket}/{prefix}"


@pytest.mark.slow
def test_a_stream_on_two_hosts_goes_on_in_mid_epoch_on_three_and_ends_on_one(estimator: Build, data: str) -> None:
    taken: dict[tuple[int, int], dict[int, list[int]]] = {}
    place: Any = None
    for hosts, last in ((2, 3), (3, 4), (1, 99)):
        parameters = {"last": last} | ({} if place is None else {"place": place})
        job = estimator("streams.py", instance_count=hosts, input_mode="Pipe", hyperparameters=parameters).fit(data)
        lines = [line for _host, line in job.logs()]
        for line in lines:
            if found := re.search(r"epoch (\d) step (\d+) rank (\d) takes (\[.*\])", line):
                epoch, step, rank = (int(text) for text in found.groups()[:3])
                assert rank not in taken.setdefault((epoch, step), {})
                taken[epoch, step][rank] = json.loads(found[4])
        places = {line for line in lines if line.startswith("place ")}
        assert len(places) == (hosts > 1)  # all ranks say the same
        place = json.loads(places.pop().removeprefix("place ")) if places else None
    order = [
        [number for rank in sorted(taken[epoch, step]) for number in taken[epoch, step][rank]]
        for epoch in range(2)
        for step in range(5)
    ]
    assert order == [list(range(12 * step, 12 * step + 12)) for step in range(5)] * 2
