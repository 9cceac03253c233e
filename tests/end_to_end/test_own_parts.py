"""A channel that is ShardedByS3Key: hosts with other objects each take equal steps, and cannot become fewer."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest
from sagemaker.inputs import TrainingInput

from estimators import Estimator
from estimators.errors import TrainingJobFailed
from estimators.local import LocalSageMaker


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_hosts_train_on_their_own_objects_and_a_resume_on_one_is_refused(
    estimator: Callable[..., Estimator], platform: LocalSageMaker
) -> None:
    bucket, prefix = platform.default_bucket, f"own-parts-{time.time_ns()}"
    s3 = platform.boto_session.client("s3")
    sizes = (9, 12, 6, 5)  # the hosts get every other: 15 and 17
    for part, size in enumerate(sizes):
        lines = "".join(f'{{"n": {100 * part + number}}}\n' for number in range(size))
        s3.put_object(Bucket=bucket, Key=f"{prefix}/{part}.jsonl", Body=lines.encode())
    data = {"training": TrainingInput(f"s3://{bucket}/{prefix}/", distribution="ShardedByS3Key")}
    place = f"s3://{bucket}/checkpoints-{prefix}"

    job = estimator("own_parts.py", instance_count=2, checkpoint_s3_uri=place).fit(data)
    taken = [
        json.loads(found[1]) for _host, line in job.logs() if (found := re.search(r"rank \d takes (\[.*\])", line))
    ]
    assert [len(set(numbers)) for numbers in taken] == [12, 12]  # three steps of four on each
    assert sorted({number // 100 for number in numbers} <= {0, 2} for numbers in taken) == [False, True]
    assert sorted({number // 100 for number in numbers} <= {1, 3} for numbers in taken) == [False, True]

    again = estimator("own_parts.py", checkpoint_s3_uri=place, hyperparameters={"epochs": 2})
    with pytest.raises(TrainingJobFailed, match="sharded over 2 hosts, and it is over 1 now"):
        again.fit(data)
