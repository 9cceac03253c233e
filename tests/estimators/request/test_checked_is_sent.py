"""What was checked is what is sent: the request that the checks see, byte by byte, with V2 and with V3.

Only what AWS and the upload decide differs: the code's URI, and the account of a role known only by its name.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from estimators.request.job_request import CODE_URI, NO_ACCOUNT
from estimators.sdk.adapter import adapter
from tests.estimators.sdk.job_sets import ROLE, job_sets
from tests.estimators.sdk.sent_requests import lay_out_code, sent_for
from tests.estimators.sdk.test_v3_requests import NOT_DRAWN, names_in
from tests.sdk_v3 import python_with_sdk_v3

ROOT = Path(__file__).parents[3]
DRAWN = 90
ACCOUNT = "123456789012"


def jobs() -> list[dict[str, Any]]:
    """Return jobs with all parameters."""
    of_v2_alone = {"training_recipe", "compiler_config", "sagemaker_session"}
    drawn = job_sets(35, DRAWN)
    common = {"entry_point": "code/train.py", "role": ROLE, "instance_type": "ml.g5.xlarge"}
    preferred = [
        {"instance_type": "ml.g5.xlarge", "instance_count": 2},
        {"instance_type": "ml.g6.xlarge"} | {"instance_count": 1},
    ]
    mlflow = {"mlflow_resource_arn": f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:mlflow-app/app-1"}
    rule = {
        "class": "debugger.Rule.custom",
        "arguments": ["mine", "123456789012.dkr.ecr.us-east-1.amazonaws.com/rules:1", "ml.m5.large", 30],
        "options": {"source": "code/train.py", "rule_to_invoke": "Mine"},
    }
    added = [
        {**common, "instance_type": None, "instance_preferences": preferred, "mlflow_config": mlflow},
        {**common, "role": "Team"},
        {**common, "rules": [rule], "disable_profiler": True},
        {**common, "role": "Team", "rules": [rule], "enable_network_isolation": True},
    ]
    for arguments in added:
        stated = {name: value for name, value in arguments.items() if value is not None}
        session = {"region": "us-east-1", "bucket": None, "configured": None, "prefix": "team"}
        drawn.append({"number": 1, "session": session, "arguments": stated, "calls": {"inputs": "s3://data/train"}})
    assert names_in(drawn, "arguments") == (adapter().parameter_names() | NOT_DRAWN) - of_v2_alone
    return drawn


def with_sdk_v3(directory: Path, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers of a process with V3."""
    (directory / "jobs.json").write_text(json.dumps(asked))
    (directory / "there").mkdir()
    program = ("-m", "tests.estimators.sdk.sent_requests", directory / "jobs.json", directory / "answers.json")
    done = subprocess.run(
        [python_with_sdk_v3(directory / "v3"), *program],
        cwd=directory / "there",
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SAGEMAKER_VALIDATE_ROLE": "false",
            "GIT_CONFIG_GLOBAL": str(directory / "there.gitconfig"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    answers: list[dict[str, Any]] = json.loads((directory / "answers.json").read_text())
    return answers


def with_sdk_v2(directory: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.chdir(directory)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(directory / "gitconfig"))
    lay_out_code()
    return sent_for(asked)


def code_uri(request: dict[str, Any]) -> str:
    """Return the S3 URI of a request's code."""
    places = [each["DataSource"] for each in request.get("InputDataConfig", ()) if each["ChannelName"] == "code"]
    told: str = json.loads(request["HyperParameters"]["sagemaker_submit_directory"])
    return told if told.startswith("s3://") else places[0]["S3DataSource"]["S3Uri"]


@pytest.mark.parametrize("generation", ["V2", pytest.param("V3", marks=[pytest.mark.sdk_v3, pytest.mark.slow])])
@pytest.mark.timeout(600)
def test_the_request_that_is_checked_is_sent(generation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = jobs()
    answers = with_sdk_v2(tmp_path, asked, monkeypatch) if generation == "V2" else with_sdk_v3(tmp_path, asked)
    sent = [each for each in answers if "refused_by" not in each]
    assert len(sent) > DRAWN * 0.7
    differing = []
    for answer in sent:
        (checked,), request = answer["checked"], answer["sent"][-1][1]
        completed = checked.replace(CODE_URI, code_uri(request)).replace(NO_ACCOUNT, ACCOUNT)
        if completed != json.dumps(request):
            differing.append((json.loads(completed), request))
    assert differing == []
    of_aws = [each["checked"][0] for each in sent[-4:]]
    assert [NO_ACCOUNT in text for text in of_aws] == [False, True, False, True]
    assert all(CODE_URI in text for text in of_aws)
    uploaded = [put["Key"] for answer in sent[-2:] for name, put in answer["sent"] if name == "PutObject"]
    assert sum("/mine/" in key for key in uploaded) == 2  # the rule's source
