"""Which hyperparameters travel in the bundle, and of which jobs; which service runs a job."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from estimators import Estimator
from estimators.errors import EstimatorError
from estimators.job_handle.resumed_request import Changes, resumed_request
from estimators.request.completed_job import Backend, bundle_large_hyperparameters
from estimators.sdk import adapter as sdk
from estimators.source_code import SourceCode
from smddp.job.hyperparameters.sources import BUNDLED_FILE, MOST_BYTES, POINTER

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"


@pytest.fixture
def build(tmp_path: Path, sagemaker_session: Any) -> Any:
    def estimator(script: str = "import smddp\n\nsmddp.run(main)\n", **parameters: Any) -> Estimator:
        (tmp_path / "train.py").write_text(script)
        return Estimator(
            **{
                "entry_point": tmp_path / "train.py",
                "role": "arn:aws:iam::123456789012:role/SageMaker",
                "instance_type": "ml.g5.xlarge",
                "sagemaker_session": sagemaker_session,
                **parameters,
            },
        )

    return estimator


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        ({"fits": "x" * 2498}, set()),
        ({"long": "x" * 2499, "short": 1}, {"long"}),
        ({"n" * 257: 1}, {"n" * 257}),
        ({f"h{n}": n for n in range(88)}, set()),
        ({f"h{n}": n for n in range(89)} | {"sagemaker_own": 1}, {f"h{n}" for n in range(89)}),
    ],
    ids=["the longest", "too long", "a long name", "many", "too many"],
)
@pytest.mark.slow
def test_what_the_request_cannot_hold_travels(build: Any, given: dict[str, Any], carried: set[str]) -> None:
    job = build(hyperparameters=given)
    assert job.plan().errors == ()
    found = bundle_large_hyperparameters(job.arguments, SourceCode.of(job.arguments))
    assert set(found.names) == carried
    assert given.keys() - carried == found.arguments["hyperparameters"].keys() - {POINTER}
    if carried:
        content = found.files[BUNDLED_FILE]
        assert {name: json.loads(text) for name, text in json.loads(content).items()} == {
            name: given[name] for name in carried
        }
        assert found.arguments["hyperparameters"][POINTER] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("parameters", "refused", "warned"),
    [
        ({"script": "import argparse\n"}, True, False),
        ({"script": "import smddp\n\nsmddp.Checkpointer(place)\n"}, True, False),
        ({"script": "import argparse\n", "image_uri": IMAGE}, False, True),
        ({"image_uri": IMAGE}, False, False),
        ({"git_config": {"repo": "https://example.com/a.git", "commit": "f1d2d2f9"}}, True, False),
        ({"source_dir": "s3://jobs/sourcedir.tar.gz", "entry_point": "train.py"}, True, False),
    ],
    ids=str,
)
def test_only_who_reads_them_gets_them(build: Any, parameters: Any, refused: bool, warned: bool) -> None:
    plan = build(**parameters, hyperparameters={"long": "x" * 9999}).plan()
    assert {problem.parameter for problem in plan.errors} == ({"hyperparameters"} if refused else set())
    told = "too large for the request, so they travel in the bundle: long" in str(plan)
    assert told == warned == ("hyperparameters" in {problem.parameter for problem in plan.warnings})
    assert (" in the code's bundle (" in str(plan)) != refused


@pytest.mark.parametrize(
    ("script", "bundled"),
    [
        ("import smddp as s\n\ns.run(main)\n", True),
        ("from smddp import run as start\n\nstart(main)\n", True),
        ("from smddp.training import run\n\nrun(main)\n", True),
        ("from smddp import Job\n\njob = Job.detect()\n", True),
        ("from smddp.job import Job\n\njob = Job.detect()\n", True),
        ("from smddp.job import hyperparameters\n\nhyperparameters.load(Config)\n", True),
        ("from smddp.hydra import main\n\n@main()\ndef train(config): ...\n", True),
        ("import argparse\nimport smddp\n\ndef run(): ...\n\nrun()\n", False),
        ("import argparse\nimport smddp\nfrom jobs import Job\n\nJob.detect()\n", False),
        ("import argparse\nimport smddp\nfrom yaml import main\n\nmain()\n", False),
    ],
    ids=repr,
)
def test_a_reader_is_known_by_its_import_not_by_its_name_alone(build: Any, script: str, bundled: bool) -> None:
    job = build(script=script, hyperparameters={"long": "x" * 3000})
    found = bundle_large_hyperparameters(job.arguments, SourceCode.of(job.arguments))
    assert found.names == (("long",) if bundled else ())


def test_more_than_a_variable_holds_is_for_smddp_run_alone(build: Any) -> None:
    large = {"long": "x" * MOST_BYTES}
    plan = build(hyperparameters=large).plan()
    assert "too long for SM_HPS and a command line: smddp.run alone has them" in str(plan)
    assert plan.to_dict()["bundled_hyperparameters"] == ["long"]
    (problem,) = build(script="import argparse\n", image_uri=IMAGE, hyperparameters=large).plan().errors
    assert "Read them by smddp.run(main), or bring them by a channel" in str(problem)


def test_a_resumed_job_keeps_them_and_takes_none_away(build: Any, requests: list[dict[str, Any]]) -> None:
    build(hyperparameters={"long": "x" * 9999}).fit(wait=False)

    def resumed(changed: dict[str, Any]) -> dict[str, str]:
        others = dict.fromkeys(Changes.__dataclass_fields__)
        sent = resumed_request(requests[-1], Changes(**{**others, "hyperparameters": changed}), "again")
        return dict(sent["HyperParameters"])

    again = resumed({"long": "short"})
    assert again[POINTER] == requests[-1]["HyperParameters"][POINTER]
    assert again["long"] == '"short"'
    with pytest.raises(EstimatorError, match=r"hyperparameters\['long'\] can't be taken away"):
        resumed({"long": None})


@pytest.mark.parametrize(
    ("instance_type", "is_local_session", "backend"),
    [
        ("ml.m5.xlarge", False, Backend.SAGEMAKER),
        ("ml.m5.xlarge", True, Backend.SAGEMAKER),
        ("local", False, Backend.DOCKER),
        ("local_gpu", True, Backend.SDK_LOCAL_MODE),
        (None, False, Backend.SAGEMAKER),
    ],
)
def test_the_instance_type_decides_and_then_the_session(
    monkeypatch: pytest.MonkeyPatch, instance_type: str | None, is_local_session: bool, backend: Backend
) -> None:
    monkeypatch.setattr(sdk.adapter(), "is_local", lambda _session: is_local_session)
    session: Any = object()
    found = Backend.of({"instance_type": instance_type}, session)
    assert (found, found.is_here) == (backend, backend is not Backend.SAGEMAKER)
