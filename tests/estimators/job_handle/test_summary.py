from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

from estimators.job_handle.summary import FinalMetrics, job_html
from smddp.secret_text import MASK

FAILED: dict[str, Any] = {
    "TrainingJobStatus": "Failed",
    "SecondaryStatus": "Failed",
    "FailureReason": "ValueError: <script>alert(1)</script>\n  HF_TOKEN=abcd1234",
    "ResourceConfig": {"InstanceCount": 2, "InstanceType": "ml.g5.xlarge"},
    "EnableManagedSpotTraining": True,
    "CreationTime": datetime(2026, 1, 1, 12, tzinfo=timezone.utc),
    "TrainingTimeInSeconds": 65,
    "ModelArtifacts": {"S3ModelArtifacts": "s3://jobs/model.tar.gz"},
    "CheckpointConfig": {"S3Uri": "s3://jobs/checkpoints"},
    "FinalMetricDataList": [{"MetricName": "loss", "Value": 0.123456}],
    "HyperParameters": {"api_token": '"abcd1234"', "note": '"<b>"', "sagemaker_program": '"train.py"'},
}


def cells(shown: str) -> list[str]:
    return re.findall(r"<t[hd] [^>]*>(.*?)</t[hd]>", shown)


def test_a_job_is_shown_escaped_and_without_secrets() -> None:
    shown = job_html("digits-<1>", FAILED)
    assert "<b>digits-&lt;1&gt;</b> Failed<" in shown
    assert f"ValueError: &lt;script&gt;alert(1)&lt;/script&gt;\n  HF_TOKEN={MASK}</pre>" in shown
    told = cells(shown)
    assert told[:2] == ["hosts", "2 × ml.g5.xlarge, spot"]
    assert told[2] == "created"
    assert told[4:] == [
        *("trained", "1:05 min", "checkpoints", "s3://jobs/checkpoints"),
        *("metric", "last value", "loss", "0.1235"),
        *("hyperparameter", "value", "api_token", f"&quot;{MASK}&quot;", "note", "&quot;&lt;b&gt;&quot;"),
    ]


def test_a_job_that_has_only_begun_is_shown_without_what_it_lacks() -> None:
    groups = [{"InstanceCount": 1, "InstanceType": "ml.m5.large"}, {"InstanceCount": 2, "InstanceType": "ml.g5.xlarge"}]
    begun = {
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Starting",
        "ResourceConfig": {"InstanceGroups": groups},
    }
    shown = job_html("digits-1", begun)
    assert "<b>digits-1</b> InProgress, Starting<" in shown
    assert cells(shown) == ["hosts", "1 × ml.m5.large + 2 × ml.g5.xlarge"]


def test_a_completed_job_has_its_model() -> None:
    assert "s3://jobs/model.tar.gz" in cells(job_html("digits-1", {**FAILED, "TrainingJobStatus": "Completed"}))


def test_no_metrics_are_shown_as_the_empty_dict() -> None:
    assert FinalMetrics.of({})._repr_html_() is None
