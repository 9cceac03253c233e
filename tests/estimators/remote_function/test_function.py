"""What `remote` makes of a function, and which calls are refused before anything is sent."""

from __future__ import annotations

import importlib
import io
import json
import runpy
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from estimators import remote
from estimators.errors import EstimatorError
from estimators.remote_function import RemoteFunction
from smddp.cli.app import app
from smddp.remote_function.sent_call import CALL_VARIABLE, SentCall

MODULE = """
from __future__ import annotations

from dataclasses import dataclass

from estimators import remote

@dataclass
class Config:
    lr: float

OPTIONS = dict(
    instance_type="ml.g5.xlarge",
    role="arn:aws:iam::123456789012:role/SageMaker",
    image_uri="image:1",
    hyperparameters={"epochs": 2},
    environment={"A": "b"},
    prices={"ml.g5.xlarge": 0.25},
)

@remote(**OPTIONS)
def train_it(config: Config, layers=(), job=None):
    trainer.log(accuracy=1)

class Trainer:
    @staticmethod
    @remote(**OPTIONS)
    def train(config: Config):
        pass

def hidden():
    pass

shown, hidden = hidden, None
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a module that has remote functions, and more."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "training_module.py").write_text(MODULE)
    (directory / "id_rsa").write_text("secret")
    monkeypatch.syspath_prepend(directory)
    yield directory
    sys.modules.pop("training_module", None)


@pytest.fixture
def training(project: Path) -> Any:
    return importlib.import_module("training_module")


def names_in_bundle(session: Any, request: dict[str, Any]) -> set[str]:
    uri = json.loads(request["HyperParameters"]["sagemaker_submit_directory"])
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    body = session.boto_session.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        return {name.removeprefix("./") for name in archive.getnames()}


def test_the_request_is_that_of_an_estimator_with_the_functions_code(
    training: Any, sagemaker_session: Any, requests: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    function = training.train_it.options(sagemaker_session=sagemaker_session, inputs={"data": "s3://data/train"})
    handle = function.submit(training.Config(0.1), layers=[1])
    (request,) = requests
    call = SentCall.read(request["Environment"])
    assert (call.function, call.serializer) == ("training_module:train_it", "safetensors")
    assert request["Environment"]["A"] == "b"
    assert request["HyperParameters"]["epochs"] == "2"
    assert request["HyperParameters"]["sagemaker_program"] == '"smddp_call.py"'
    assert [channel["ChannelName"] for channel in request["InputDataConfig"]] == ["data"]
    assert request["TrainingJobName"] == handle.training_job.name
    assert request["TrainingJobName"].startswith("train-it-")
    metrics = [each["Name"] for each in request["AlgorithmSpecification"]["MetricDefinitions"]]
    assert {"loss", "accuracy"} <= set(metrics)
    names = names_in_bundle(sagemaker_session, request)
    # estimators, too: the module imports it, and so the job does.
    assert {"training_module.py", "smddp_arguments.json", "smddp/__init__.py", "estimators/__init__.py"} <= names
    assert "id_rsa" not in names
    assert "id_rsa" in caplog.text


def test_a_notebooks_function_is_sent_by_cloudpickle_with_what_it_needs(
    sagemaker_session: Any, requests: list[dict[str, Any]]
) -> None:
    function = remote(notebook_function(), serializer="cloudpickle", **options(sagemaker_session))
    function.submit(1)
    names = names_in_bundle(sagemaker_session, requests[0])
    assert {"smddp_call.py", "smddp_arguments.pickle", "requirements.txt"} <= names
    assert not any(name.startswith("estimators") for name in names)


@pytest.mark.slow
def test_a_plan_sends_nothing_and_what_is_wrong_with_the_job_is_in_it(
    training: Any, sagemaker_session: Any, requests: list[dict[str, Any]]
) -> None:
    call = training.Config(0.1)
    function = training.train_it.options(sagemaker_session=sagemaker_session, max_cost=1)
    assert [problem.parameter for problem in function.plan(call).errors] == ["max_cost"]
    assert not training.Trainer.train.options(sagemaker_session=sagemaker_session).plan(call).errors
    assert training.train_it.options(role=None, sagemaker_session=sagemaker_session).plan(call).errors
    with pytest.raises(EstimatorError, match="max_cost: the job may cost"):
        function(call)
    assert not requests


def options(session: Any = None) -> dict[str, Any]:
    job = {"instance_type": "ml.g5.xlarge", "role": "arn:aws:iam::123456789012:role/A", "image_uri": "image:1"}
    return job if session is None else job | {"sagemaker_session": session}


def notebook_function() -> Callable[..., Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def cell(x): return x", namespace)
    function: Callable[..., Any] = namespace["cell"]
    return function


def local() -> Callable[..., Any]:
    def inner() -> None: ...

    return inner


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a lock": (
        lambda training: training.train_it(training.Config(0.1), [1, threading.Lock()]),
        r"^Nothing was sent: .*arguments\.layers\.1 is a _thread\.lock",
    ),
    "a missing argument": (
        lambda training: training.train_it(),
        r"train_it\(\): missing a required argument: 'config'",
    ),
    "the job itself": (lambda training: training.train_it(1, job=2), "unexpected keyword argument 'job'"),
    "a lambda": (lambda _: remote(lambda: 1, **options())(), r"is a lambda, .*serializer='cloudpickle'"),
    "a closure": (lambda _: remote(local(), **options())(), "is defined in another function"),
    "a notebook's": (lambda _: remote(notebook_function(), **options())(1), "is defined in a notebook"),
    "hidden by another": (lambda training: remote(training.shown, **options())(), "is no longer this function"),
    "of a package": (lambda _: remote(json.loads, **options())("1"), "is in an installed package"),
    "code on S3": (lambda training: training.train_it.options(source_dir="s3://a/b")(1), "source_dir is s3://a/b"),
    "code elsewhere": (lambda training: training.train_it.options(source_dir="/tmp")(1), "is imported from .*project"),
    "a local job": (
        lambda training: training.train_it.options(instance_type="local")(1),
        "instance_type='local' keeps",
    ),
    "an entry point": (lambda training: training.train_it.options(entry_point="a.py"), "entry_point is no option"),
    "an unknown option": (lambda training: training.train_it.options(spot=True)(1), "'spot' is no parameter"),
    "a serializer": (lambda training: remote(local(), serializer="pickle"), "serializer='pickle': give 'safe"),  # type: ignore[call-overload]
    "pickles for another Python": (
        lambda training: training.train_it.options(serializer="cloudpickle", image_uri=None, py_version="py27")(1),
        "py_version is 'py27', which can't run code that this Python pickles",
    ),
    "one dependency": (
        lambda training: training.train_it.options(dependencies="ab")(1),
        "dependencies is one path, 'ab'",
    ),
    "an environment": (lambda training: training.train_it.options(environment=["A"])(1), r"environment is \['A'\]"),
    "a class": (lambda training: remote(dict), r"<class 'dict'> is no function"),
    "a dependency": (
        lambda training: training.train_it.options(dependencies=["gone"])(training.Config(1)),
        "dependencies: there is no gone",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.slow
def test_what_cannot_work_is_refused_before_anything_is_sent(
    training: Any,
    call: Callable[[Any], Any],
    message: str,
    sagemaker_session: Any,
    requests: list[dict[str, Any]],
) -> None:
    for each in (training.train_it, training.Trainer.train):
        each._options["sagemaker_session"] = sagemaker_session
    with pytest.raises(EstimatorError, match=message):
        call(training)
    assert not requests


def test_a_file_that_is_left_out_is_refused(project: Path, training: Any) -> None:
    (project / ".smddpignore").write_text("*.py\n")
    with pytest.raises(EstimatorError, match=r"training_module\.py has the function, and is not sent"):
        training.train_it(training.Config(0.1))


def test_a_home_directory_is_sent_only_by_its_name(
    project: Path, training: Any, monkeypatch: pytest.MonkeyPatch, sagemaker_session: Any
) -> None:
    monkeypatch.setenv("HOME", str(project))
    function = training.train_it.options(sagemaker_session=sagemaker_session)
    with pytest.raises(EstimatorError, match=r"all of .*project would be sent"):
        function.plan(training.Config(0.1))
    assert not function.options(source_dir=project).plan(training.Config(0.1)).errors


def test_within_a_job_no_other_is_sent(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CALL_VARIABLE, "{}")
    with pytest.raises(EstimatorError, match=r"train_it\(\) is called in the job of a remote function"):
        training.train_it(training.Config(0.1))


def test_a_script_is_planned_if_its_call_is_guarded(
    project: Path, may_send_again: None, monkeypatch: pytest.MonkeyPatch, sagemaker_session: Any
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    script = project / "submit.py"
    script.write_text(f"{MODULE}\nif __name__ == '__main__':\n    train_it(Config(0.1))\n    print('unreached')\n")
    planned = CliRunner().invoke(app, ["plan", str(script)])
    assert (planned.exit_code, planned.stdout.splitlines()[0]) == (0, "1 × ml.g5.xlarge, the script alone")
    assert "unreached" not in planned.output


def test_a_script_whose_call_its_own_job_would_make_again_is_refused(project: Path) -> None:
    script = project / "submit.py"
    script.write_text(f"{MODULE}\ndef main():\n    train_it(Config(0.1))\n\nif True:\n    main()\n")
    with pytest.raises(EstimatorError, match=r"train_it\(\) is called by line \d+ of submit\.py"):
        runpy.run_path(str(script), run_name="__main__")
    script.write_text(f"{MODULE}\ntrain_it.options(serializer='cloudpickle', spot=True)(Config(0.1))\n")
    with pytest.raises(EstimatorError, match="'spot' is no parameter"):  # pickled, it is not imported there
        runpy.run_path(str(script), run_name="__main__")


def test_the_plain_function_stays_at_hand() -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    wrapped: RemoteFunction[..., int] = remote(add)
    assert (wrapped.function(1, 2), wrapped.__doc__, wrapped.__name__) == (3, "Add.", "add")
