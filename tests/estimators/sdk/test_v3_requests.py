"""With SDK V3 alone an Estimator uploads and sends what it does with V2: hundreds of jobs, drawn at random, by both.

V3 sends a third of them by a ModelTrainer, too, where ModelTrainer can hold it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest

from estimators.instances import BEYOND_PYTORCH
from estimators.sdk.adapter import adapter
from tests.estimators.sdk.job_sets import job_sets
from tests.estimators.sdk.sent_requests import lay_out_code, sent_for
from tests.sdk_v3 import python_with_sdk_v3

ROOT = Path(__file__).parents[3]
JOBS = 640
SEED = 17

_TIME = re.compile(r"-\d{4}(-\d\d){5}-\d{1,3}")
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
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SAGEMAKER_VALIDATE_ROLE": "false",
                "GIT_CONFIG_GLOBAL": str(tmp_path / "there.gitconfig"),
            },
            stderr=errors,
        ) as with_v3,
    ):
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "here.gitconfig"))
        lay_out_code()
        answers = sent_for(jobs)
    assert with_v3.returncode == 0, (tmp_path / "errors").read_text()[-5000:]
    by_v3 = json.loads((tmp_path / "answers.json").read_text())
    check_model_trainers(jobs, by_v3)
    others = comparable(by_v3)
    both = zip(jobs, comparable(answers), others, strict=True)
    assert [(job, here, there) for job, here, there in both if here != there] == []
    sent = [job for job, answer in zip(jobs, answers, strict=True) if "refused_by" not in answer]
    assert len(sent) >= 500
    assert sum("git_config" in job["arguments"] for job in sent) >= 20
    assert set(names_of([members for answer in answers for _, members in answer["sent"]])) >= REACHED
    assert names_in(jobs, "arguments") == adapter().parameter_names() - NOT_DRAWN
    assert names_in([each for job in jobs for each in objects_in(job)], "options") >= options_of_channels()


NOT_DRAWN = {"sagemaker_session", "training_recipe", "compiler_config", *BEYOND_PYTORCH}
"""Who is told anyway, what V3 lacks, and what V2's PyTorch does."""


def names_of(value: Any) -> Iterator[str]:
    """Yield the names of all members of structures, however deep."""
    if isinstance(value, Mapping):
        yield from value
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from names_of(item)


def names_in(items: Iterable[Any], member: str) -> set[str]:
    return {name for item in items for name in item[member]}


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the SDK's channels in a value, with the names of their options."""
    if isinstance(value, Mapping):
        if value.get("class", "").startswith("inputs."):
            yield dict(value)
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from objects_in(item)


def options_of_channels() -> set[str]:
    """All parameters of the SDK's channels but those that have no default."""
    from sagemaker.inputs import FileSystemInput, TrainingInput

    parameters = [*signature(TrainingInput).parameters.values(), *signature(FileSystemInput).parameters.values()]
    return {each.name for each in parameters if each.default is not Parameter.empty}


REACHED = {
    *("AlgorithmSpecification", "CheckpointConfig", "DebugHookConfig", "DebugRuleConfigurations", "Environment"),
    *("EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining", "EnableNetworkIsolation"),
    *("ExperimentConfig", "HyperParameters", "InfraCheckConfig", "InputDataConfig", "OutputDataConfig"),
    *("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig", "ResourceConfig", "RetryStrategy"),
    *("RoleArn", "SessionChainingConfig", "StoppingCondition", "Tags", "TensorBoardOutputConfig", "TrainingJobName"),
    *("VpcConfig", "ExpectedBucketOwner", "SSEKMSKeyId"),
    *("AttributeNames", "CompressionType", "ContentType", "FileSystemAccessMode", "FileSystemId", "HubAccessConfig"),
    *("InputMode", "InstanceGroupNames", "ModelAccessConfig", "RecordWrapperType", "S3DataDistributionType"),
    *("S3DataType", "ShuffleConfig", "TrainingImageConfig", "TrainingPlanArn"),
}
"""What the jobs must bring into the requests, so that they show something."""


def comparable(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return answers without the times in names, and without the words of a refusal, which are each SDK's own."""
    timeless = json.loads(_TIME.sub("-TIME", json.dumps(answers)))
    return [
        {name: value for name, value in answer.items() if name not in ("why", "trainer", "checked")}
        for answer in timeless
    ]


def check_model_trainers(jobs: list[dict[str, Any]], answers: list[dict[str, Any]]) -> None:
    """See that a ModelTrainer sends the job that fit() sends, or that what it can't hold was named."""
    differing, held = [], 0
    for job, answer in zip(jobs, answers, strict=True):
        if "trainer" not in answer:
            continue
        request, by_trainer = answer["sent"][-1][1], answer["trainer"]
        lost = not_held(job["arguments"], request)
        if isinstance(by_trainer, str):
            (named,) = re.findall(r"can't hold (.+) of the job's request", by_trainer)
            if set(named.split(", ")) != lost:
                differing.append((job, lost, by_trainer))
        else:
            held += 1
            both = [in_effect(sent, job) for sent in (request, by_trainer)]
            if lost or both[0] != both[1]:
                differing.append((job, lost, both))
    assert differing == []
    assert held >= 60


def not_held(arguments: dict[str, Any], request: dict[str, Any]) -> set[str]:
    """What ModelTrainer does not support, of what a job asks for by itself."""
    members = {*request, *request["AlgorithmSpecification"]}
    lost = {name for name in members if name.startswith(("Debug", "Container"))}
    if request["ProfilerConfig"] != {"DisableProfiler": True}:
        lost |= {"ProfilerConfig"}
    if "enable_sagemaker_metrics" in arguments:
        lost |= {"EnableSageMakerMetricsTimeSeries"}
    return lost | members & {"ProfilerRuleConfigurations"}


def in_effect(request: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Return a request without what no ModelTrainer says, and without names that have the time in them."""
    kept: dict[str, Any] = json.loads(_TIME.sub("-TIME", json.dumps(request)))
    for name in ("TrainingJobName", "ExperimentConfig", "ProfilerConfig"):
        kept.pop(name, None)
    kept["AlgorithmSpecification"].pop("EnableSageMakerMetricsTimeSeries", None)
    if "class" in (job["calls"]["inputs"] or ()):  # a single channel's mode, which fit() takes for that of the job
        kept["AlgorithmSpecification"].pop("TrainingInputMode")
    for name in ("sagemaker_job_name", "sagemaker_submit_directory"):
        kept["HyperParameters"].pop(name, None)
    kept["InputDataConfig"] = {
        channel["ChannelName"]: channel
        for channel in kept.pop("InputDataConfig", ())
        if channel["ChannelName"] != "code"
    }
    return without_nothing(kept)


def without_nothing(members: dict[str, Any]) -> dict[str, Any]:
    """Return members without what ModelTrainer leaves out, and which says nothing: false, and what is empty."""
    kept = {name: without_nothing(value) if isinstance(value, dict) else value for name, value in members.items()}
    return {name: value for name, value in kept.items() if value not in (False, [], {})}
