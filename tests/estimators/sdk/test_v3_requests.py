"""With SDK V3 alone an Estimator uploads and sends what it does with V2: hundreds of jobs, drawn at random, by both."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.estimators.sdk.job_sets import job_sets
from tests.estimators.sdk.sent_requests import lay_out_code, sent_for
from tests.sdk_v3 import python_with_sdk_v3

ROOT = Path(__file__).parents[3]
JOBS = 640
SEED = 17

_TIME = re.compile(r"-\d{4}(-\d\d){5}-\d{3}")
"""What the SDKs put after the base of a job's name."""


@pytest.mark.sdk_v3
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_v3_sends_what_v2_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = job_sets(SEED, JOBS)
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    (tmp_path / "there").mkdir()
    program = ("-m", "tests.estimators.sdk.sent_requests", tmp_path / "jobs.json", tmp_path / "answers.json")
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(
            [python_with_sdk_v3(tmp_path / "v3"), *program],
            cwd=tmp_path / "there",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=errors,
        ) as with_v3,
    ):
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        lay_out_code()
        answers = sent_for(jobs)
    assert with_v3.returncode == 0, (tmp_path / "errors").read_text()[-5000:]
    others = comparable(json.loads((tmp_path / "answers.json").read_text()))
    both = zip(jobs, comparable(answers), others, strict=True)
    assert [(job, here, there) for job, here, there in both if here != there] == []
    assert sum("refused_by" not in answer for answer in answers) >= 500
    sent = Counter(name for answer in answers for _, members in answer["sent"] for name in members)
    assert sent.keys() >= REACHED


REACHED = {
    *("AlgorithmSpecification", "CheckpointConfig", "DebugHookConfig", "DebugRuleConfigurations", "Environment"),
    *("EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining", "EnableNetworkIsolation"),
    *("ExperimentConfig", "HyperParameters", "InfraCheckConfig", "InputDataConfig", "OutputDataConfig"),
    *("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig", "ResourceConfig", "RetryStrategy"),
    *("RoleArn", "SessionChainingConfig", "StoppingCondition", "Tags", "TensorBoardOutputConfig", "TrainingJobName"),
    *("VpcConfig", "ExpectedBucketOwner", "SSEKMSKeyId"),
}
"""What the jobs must bring into the requests, so that they show something."""


def comparable(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return answers without the times in names, and without the words of a refusal, which are each SDK's own."""
    timeless = json.loads(_TIME.sub("-TIME", json.dumps(answers)))
    return [{name: value for name, value in answer.items() if name != "why"} for answer in timeless]
