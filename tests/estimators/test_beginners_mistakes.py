"""The mistakes of a first day: each is told before anything is sent, in seconds, with the word that mends it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest

from estimators import Estimator
from estimators.errors import EstimatorError
from estimators.local import LocalSageMaker
from tests.estimators.data_on_s3 import BUCKET

SECONDS = 30.0
LEAST_TOLD = 27
ROLE = "arn:aws:iam::123456789012:role/SageMaker"
HERE = Path(__file__).resolve()

SCRIPT = """
from dataclasses import dataclass
from typing import Literal
import torch
import smddp

@dataclass
class Config:
    data: str = "images"
    epochs: int = 3
    batch_size: int = 64
    lr: float = 0.1
    optimizer: Literal["sgd", "adam"] = "sgd"

def main(config: Config, job: smddp.Job) -> None:
    model = torch.nn.Linear(8, 2)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=config.lr))
    loader = trainer.loader(torch.rand(640, 8), batch_size=config.batch_size)
    for epoch in trainer.epochs(config.epochs):
        for batch in trainer.batches(loader):
            trainer.step(trainer.model(batch).mean())

if __name__ == "__main__":
    smddp.run(main)
"""
ARGPARSE = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
"""


def changed(old: str, new: str) -> str:
    """Return the script with one mistake in it."""
    assert old in SCRIPT
    return SCRIPT.replace(old, new)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A job with one mistake in it."""

    said: str
    """Words of the message that tells it."""
    script: str = SCRIPT
    files: Mapping[str, str] = field(default_factory=dict)
    """More files of the source directory."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the Estimator; None leaves one out."""
    inputs: Any = None
    not_told: str = ""
    """The reason why nothing tells it, or empty."""


def given(said: str, **parameters: Any) -> Mistake:
    return Mistake(said=said, parameters=parameters)


def hyperparameters(said: str, script: str = SCRIPT, **values: Any) -> Mistake:
    return Mistake(said=said, script=script, parameters={"hyperparameters": values})


def wrong(old: str, new: str, said: str, **parameters: Any) -> Mistake:
    return Mistake(said=said, script=changed(old, new), parameters=parameters)


GPU = {"instance_type": "ml.g5.xlarge", "distribution": "torchrun"}
SPOT = {"use_spot_instances": True, "max_run": 600}

MISTAKES: dict[str, Mistake] = {
    # the code
    "a misspelt script": given("Did you mean 'train.py'?", entry_point="tran.py"),
    "a source_dir that is not there": given("there is no directory", source_dir="no/such/place"),
    "a syntax error": wrong("def main(config: Config, job: smddp.Job) -> None:", "def main(config, job)", "line 15"),
    "a script without the modules beside it": Mistake(
        said="is uploaded alone, and imports models, which lies beside it",
        script="import models\n" + SCRIPT,
        files={"models.py": ""},
        parameters={"source_dir": None},
    ),
    "a file of secrets in source_dir": Mistake(said="not uploaded, for it looks secret", files={".env": "KEY=1\n"}),
    "a mutable default": wrong('data: str = "images"', "data: list = []", "use default_factory"),
    "a dataclass without @dataclass": wrong("@dataclass\nclass Config", "class Config", "has no @dataclass"),
    "a main whose config has no type": wrong("config: Config,", "config,", "annotate it with"),
    "a run without the guard": Mistake(
        said='if __name__ == "__main__":',
        script=changed('if __name__ == "__main__":\n    smddp', "smddp").replace(
            "=config.batch_size)", "=config.batch_size, num_workers=2)"
        ),
    ),
    "a path of this machine": wrong("torch.rand(640, 8)", f"torch.load({str(HERE)!r})", "and on no host of the job"),
    "a call of CUDA on hosts without a GPU": wrong(
        "torch.nn.Linear(8, 2)", "torch.nn.Linear(8, 2).cuda()", "trainer.device"
    ),
    "ranks that spawn ranks": Mistake(
        said="starts ranks, too",
        script="import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)\n",
        parameters=GPU,
    ),
    # hyperparameters
    "a misspelt hyperparameter": hyperparameters("did you mean 'epochs'?", epoch=2),
    "a word for a number": hyperparameters("lr: expected float, found 'fast'", lr="fast"),
    "a fraction for a whole number": hyperparameters("epochs: expected int, found 1.5", epochs=1.5),
    "a choice that there is not": hyperparameters("found 'rmsprop'", optimizer="rmsprop"),
    "a hyperparameter that is missing": wrong('data: str = "images"', "data: str", "missing data"),
    "a value that JSON can't hold": hyperparameters("'data' can't be sent", data={1, 2}),
    "a number as the name of a hyperparameter": given("the dict has the name 1, of type int", hyperparameters={1: 2}),
    "a number as a name in a hyperparameter": hyperparameters(
        "'data'[0]['a'] has the name 1, of type int, and JSON has only text as names. Give text, such as '1'",
        data=[{"a": {1: "x", "1": "y"}}],
    ),
    "None as a name in a hyperparameter": hyperparameters("'data' has the name None, of type", data={None: 1}),
    "a misspelt option of argparse": hyperparameters("did you mean '--epochs'?", ARGPARSE, epochss=1, epochs=1),
    "an option of argparse that is missing": hyperparameters("required: --epochs", ARGPARSE),
    "a value for a flag of argparse": hyperparameters(
        "(--amp is a flag, which takes no value)", ARGPARSE, epochs=1, amp=True
    ),
    "a batch that the ranks can't share": Mistake(
        said="The nearest are 62 and 64.",
        parameters={**GPU, "instance_count": 2, "hyperparameters": {"batch_size": 63}},
    ),
    # the job
    "a misspelt parameter": given("Did you mean 'instance_count'", instance_cuont=2),
    "an instance type without ml.": given("Did you mean 'ml.m5.xlarge'", instance_type="m5.xlarge"),
    "an instance type that there is not": given("Did you mean 'ml.g5.xlarge'", instance_type="ml.g5.xlarge2"),
    "a platform in place of its session": given(
        "LocalSageMaker, and no session of the SageMaker SDK. Give its .session", sagemaker_session=LocalSageMaker()
    ),
    "a session of boto3": given("is a Session, and no session of the SageMaker SDK", sagemaker_session=boto3.Session()),
    "hyperparameters in a list": given("of type list. Give a dict", hyperparameters=["epochs", 1]),
    "a list of URIs": Mistake(said="Give one URI, or a dict", inputs=["s3://bucket/data"]),
    "a misspelt distribution": given("Did you mean 'torchrun'", distribution="torchrn"),
    "torchrun on hosts without a GPU": given(
        "Use distribution='mpi' or no distribution (smddp", distribution="torchrun"
    ),
    "a version of PyTorch that there is not": given("framework_version", framework_version="9.9", py_version="py312"),
    "a bucket in place of a role": given(
        "role: 'arn:aws:s3:::bucket' is no ARN of an IAM role. Give the ARN, such as", role="arn:aws:s3:::bucket"
    ),
    "no role": given("role: missing", role=None),
    "spot without max_wait": given("must say how long it may take", **SPOT),
    "max_wait less than max_run": given("Give at least 600.", **SPOT, max_wait=60),
    "spot without checkpoints": given("starts from the beginning", **SPOT, max_wait=900),
    "a name with an underscore": given("'my_job-", base_job_name="my_job"),
    # the packages
    "a package that the job does not have": Mistake(
        said="albumentations is imported (train.py, line 1), and neither in requirements.txt nor in source_dir",
        script="import albumentations\n" + SCRIPT,
    ),
    "another PyTorch than the job's": Mistake(
        said="by 'torch==2.6.0' pip replaces PyTorch", files={"requirements.txt": "torch==2.6.0\n"}
    ),
    # the data
    "data on this machine": Mistake(said="Here is no such file, either", inputs={"training": "./data"}),
    "a file URI": Mistake(said="where SageMaker can't read it", inputs={"training": "file:///data"}),
    "a bucket that there is not": Mistake(said="there is no bucket", inputs={"training": "s3://no-such-bucket-4711/a"}),
    "a prefix without objects": Mistake(said="there are no objects", inputs={"training": f"s3://{BUCKET}/no/such"}),
    "a channel by another name": Mistake(
        said="Give fit() a channel named",
        script=changed("torch.rand(640, 8)", 'torch.load(job.channels["train"])'),
        inputs={"training": f"s3://{BUCKET}/data"},
    ),
    "no data at all": Mistake(
        said="Give fit() {'train': 's3://…'}",
        script=changed("torch.rand(640, 8)", 'torch.load(job.channels["train"])'),
    ),
    "checkpoints on this machine": given("is not an S3 URI", checkpoint_s3_uri="./checkpoints"),
    "checkpoints among the data": Mistake(
        said="checkpoints would be read as data",
        parameters={"checkpoint_s3_uri": f"s3://{BUCKET}/data/checkpoints"},
        inputs={"training": f"s3://{BUCKET}/data/"},
    ),
    # what only running the script can tell
    "a name that is not defined": Mistake(
        said="modle",
        script=changed("trainer.model(batch)", "trainer.modle(batch)"),
        not_told="whether an object has an attribute is known only when the script runs: rehearse() tells it",
    ),
    "a learning rate that is too high": Mistake(
        said="lr",
        parameters={"hyperparameters": {"lr": 1000.0}},
        not_told="the loss tells it: the Trainer ends a job whose loss is not finite",
    ),
    "a batch that the memory does not hold": Mistake(
        said="memory",
        parameters={"hyperparameters": {"batch_size": 2**30}},
        not_told="the memory that a model needs is known only when it runs: rehearse() tells some of it",
    ),
}


def told(mistake: Mistake, directory: Path, session: Any) -> str:
    """Return what the plan of a job says, or if that has no errors, what `fit` says before it sends the job."""
    directory.joinpath("train.py").write_text(mistake.script)
    for name, text in mistake.files.items():
        directory.joinpath(name).write_text(text)
    common = {
        "entry_point": "train.py"
        if mistake.parameters.get("source_dir", "") is not None
        else str(directory / "train.py"),
        "source_dir": str(directory),
        "role": ROLE,
        "instance_type": "ml.m5.xlarge",
        "sagemaker_session": session,
    }
    parameters = {name: each for name, each in {**common, **mistake.parameters}.items() if each is not None}
    try:
        estimator = Estimator(**parameters)
        plan = estimator.plan(mistake.inputs)
        if not plan.problems and not mistake.not_told:
            estimator.fit(mistake.inputs, wait=False)
    except EstimatorError as fault:
        return str(fault)
    return "\n".join(map(str, plan.problems))


@pytest.mark.parametrize("name", [name for name, mistake in MISTAKES.items() if not mistake.not_told])
def test_the_mistake_is_told_before_anything_is_sent(
    name: str, tmp_path: Path, sagemaker_session: Any, requests: list[dict[str, Any]]
) -> None:
    begun = time.monotonic()
    assert MISTAKES[name].said in told(MISTAKES[name], tmp_path, sagemaker_session)
    assert time.monotonic() - begun < SECONDS
    assert requests == []


@pytest.mark.parametrize("name", [name for name, mistake in MISTAKES.items() if mistake.not_told])
def test_the_mistake_is_not_told_and_the_list_says_why(name: str, tmp_path: Path, sagemaker_session: Any) -> None:
    assert told(MISTAKES[name], tmp_path, sagemaker_session) == ""


def test_the_job_without_a_mistake_has_no_problem(tmp_path: Path, sagemaker_session: Any) -> None:
    without = Mistake(said="", inputs={"training": f"s3://{BUCKET}/data/"}, not_told="none")
    assert told(without, tmp_path, sagemaker_session) == ""


def test_most_mistakes_are_told() -> None:
    assert sum(not mistake.not_told for mistake in MISTAKES.values()) >= LEAST_TOLD
