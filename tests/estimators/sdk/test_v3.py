"""SDK V3 alone: an Estimator plans and trains, and what only V2 has is refused in words."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from estimators import Estimator
from estimators.instances import BEYOND_PYTORCH
from estimators.local import LocalSageMaker
from estimators.request.job_request import build
from estimators.service_model import service_model
from tests.sdk_v3 import python_with_sdk_v3

pytestmark = pytest.mark.sdk_v3

REQUESTED = {
    name
    for name in service_model().operation_model("CreateTrainingJob").input_shape.members
    if name != "TrainingJobName"
}

TRAIN = """
from dataclasses import dataclass

import torch

import smddp


@dataclass
class Config:
    lr: float = 0.1
    sizes: tuple[int, ...] = ()


def main(config: Config, job: smddp.Job) -> None:
    print(f"rank {job.cluster.rank} of {job.cluster.world_size}: {config}, {sorted(job.channels)}", flush=True)
    model = torch.nn.Linear(3, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=config.lr), log_every=1)
    loader = trainer.loader(torch.utils.data.TensorDataset(torch.ones(8, 3)), batch_size=4)
    for _ in trainer.epochs(1):
        for (inputs,) in trainer.batches(loader):
            trainer.step(trainer.model(inputs).square().mean())
    trainer.save_model()


smddp.run(main)
"""

FIT = """
import json, logging, os, sys
from fnmatch import fnmatch
from pathlib import Path
def settings():
    return dict(os.environ), logging.getLogger().level, list(logging.getLogger().handlers), sys.excepthook
before = settings()

from estimators import Estimator
from estimators.local import LocalSageMaker
from estimators.service_model import service_model
from sagemaker.core.helper.session_helper import Session

with LocalSageMaker(grace_seconds=10) as platform:
    assert type(platform.session) is Session
    data = platform.session.upload_data("code", key_prefix="data")
    estimator = Estimator(
        "train.py",
        source_dir="code",
        role=platform.role,
        instance_type="ml.g5.xlarge",
        instance_count=2,
        distribution="torchrun",
        hyperparameters={"lr": 0.5, "sizes": [1, 2]},
        sagemaker_session=platform.session,
    )
    plan = estimator.plan({"training": data})
    assert (str(plan.topology), plan.problems) == ("2 × ml.g5.xlarge, torchrun", ()), plan
    job = estimator.fit({"training": data})
    assert job.status == "Completed"
    sent = job.describe()
    assert fnmatch(json.loads(sent["HyperParameters"]["sagemaker_submit_directory"]), plan.resources.code), plan
    assert fnmatch(job.model_data, plan.resources.output + "/output/model.tar.gz"), plan
    assert [channel.place for channel in plan.resources.channels] == [data]
    assert platform.boto_session.client("s3").head_object(
        Bucket=platform.default_bucket, Key=job.model_data.split("/", 3)[3]
    )["ContentLength"]
    assert settings() == before
"""

REFUSED = """
import boto3, json
from sagemaker.core.instance_group import InstanceGroup
from sagemaker.core.local.local_session import LocalSession
from sagemaker.core.workflow.parameters import ParameterString
from sagemaker.core.workflow.pipeline_context import PipelineSession
from sagemaker.core.training_compiler.config import TrainingCompilerConfig
from estimators import Estimator
from estimators.errors import EstimatorError

common = dict(role="arn:aws:iam::123456789012:role/A", instance_type="ml.g5.xlarge")
def refusal(**arguments):
    call = arguments.pop("call", "fit")
    try:
        getattr(Estimator("train.py", **{**common, **arguments}), call)()
    except EstimatorError as fault:
        return str(fault)
groups = [InstanceGroup("gpus", "ml.g5.xlarge", 1)]
alone = {"torch_distributed": {"enabled": True}, "smdistributed": {}, "instance_groups": groups}
boto_session = boto3.Session("KEY", "SECRET", region_name="us-east-1")
print(json.dumps({
    "LocalSession": refusal(instance_type="local", sagemaker_session=LocalSession(boto_session)),
    "PipelineSession": refusal(image_uri="mine", sagemaker_session=PipelineSession(boto_session, default_bucket="b")),
    "a variable": refusal(image_uri="mine", hyperparameters={"lr": ParameterString("Rate")}),
    "to_sagemaker, local": refusal(instance_type="local", image_uri="mine", call="to_sagemaker"),
    "training_recipe": refusal(training_recipe="training/llama/one"),
    "compiler_config": refusal(compiler_config=TrainingCompilerConfig()),
    "subnets": refusal(subnets=["subnet-1"]),
    "ModelTrainer": refusal(
        image_uri="mine",
        output_path="s3://jobs/models",
        container_entry_point=["train"],
        debugger_hook_config=True,
        enable_sagemaker_metrics=True,
        call="to_sagemaker",
    ),
    "groups alone": refusal(
        image_uri="mine",
        output_path="s3://jobs/models",
        instance_type=None,
        instance_groups=groups,
        distribution=alone,
        call="to_sagemaker",
    ),
    "inputs": refusal(model_uri="s3://jobs/model.tar.gz", model_channel_name=""),
}))
"""

MODEL_TRAINER = """
import json
from sagemaker.core.helper.session_helper import Session
from estimators import Estimator

session = Session()
bucket = session.default_bucket()
session.upload_data("code", key_prefix="model")
estimator = Estimator(
    "train.py",
    source_dir="code",
    role="arn:aws:iam::123456789012:role/SmddpLocal",
    instance_type="ml.g5.xlarge",
    instance_count=2,
    distribution="torchrun",
    hyperparameters={"lr": 0.5, "sizes": [1, 2]},
    use_spot_instances=True,
    max_run=900,
    max_wait=1000,
    checkpoint_s3_uri=f"s3://{bucket}/checkpoints",
    checkpoint_local_path="/opt/ml/other",
    output_kms_key="alias/models",
    model_uri=f"s3://{bucket}/model/",
    tags={"TeamName": "vision"},
    environment={"MyVariable": "1"},
    subnets=["subnet-1"],
    security_group_ids=["sg-1"],
    encrypt_inter_container_traffic=True,
    enable_remote_debug=True,
    max_retry_attempts=2,
    metric_definitions=[{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
    sagemaker_session=session,
)
def described(name):
    job = session.sagemaker_client.describe_training_job(TrainingJobName=name)
    return job | {"Tags": session.sagemaker_client.list_tags(ResourceArn=job["TrainingJobArn"])["Tags"]}

name = estimator.fit(wait=False).name
estimator.to_sagemaker().train(wait=False, logs=False)
newest = session.sagemaker_client.list_training_jobs(SortBy="CreationTime", SortOrder="Descending", MaxResults=1)
by_trainer = newest["TrainingJobSummaries"][0]["TrainingJobName"]
sent = [described(name), described(by_trainer)]
for each in (name, by_trainer):  # what was asked for is known: nobody needs the training
    session.sagemaker_client.stop_training_job(TrainingJobName=each)
print(json.dumps(sent, default=str))
"""

PARAMETERS = """
import dataclasses, json
from estimators.sdk.v3.parameters import SESSION, Parameters
print(json.dumps({SESSION: None, **{field.name: field.default for field in dataclasses.fields(Parameters)}}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return python_with_sdk_v3(tmp_path_factory.mktemp("environment") / "v3")


def run(python: str, program: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a directory with a script, without the AWS settings of this process."""
    (directory / "code").mkdir()
    (directory / "code" / "train.py").write_text(TRAIN)
    (directory / "train.py").write_text("")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return subprocess.run(
        [python, "-c", program],
        cwd=directory,
        env={**clean, "AWS_DEFAULT_REGION": "us-east-1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(300)
def test_a_job_trains_on_the_embedded_platform(python: str, tmp_path: Path) -> None:
    done = run(python, FIT, tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    for rank in range(2):
        assert f"rank {rank} of 2: Config(lr=0.5, sizes=(1, 2)), ['training']" in done.stdout
    assert "loss=" in done.stdout


@pytest.mark.slow
def test_what_only_v2_has_is_refused_in_words(python: str, tmp_path: Path) -> None:
    done = run(python, REFUSED, tmp_path)
    assert done.returncode == 0, done.stderr
    refusals = json.loads(done.stdout)
    assert "Leave sagemaker_session out: instance_type='local' runs in Docker containers" in refusals["LocalSession"]
    assert "step_args=estimator.to_sagemaker().train(...)" in refusals["PipelineSession"]
    assert "hyperparameters: is a pipeline's variable, Rate, and no pipeline runs this job" in refusals["a variable"]
    assert "needs the Local Mode of the SageMaker Python SDK V2" in refusals["to_sagemaker, local"]
    for name in ("training_recipe", "compiler_config"):
        assert f"{name} needs the SageMaker Python SDK V2, and V3 is installed" in refusals[name]
    assert "both subnets and security_group_ids must be set" in refusals["subnets"]
    assert (
        "can't hold ContainerEntrypoint, DebugHookConfig, EnableSageMakerMetricsTimeSeries of the job's request"
        in refusals["ModelTrainer"]
    )
    assert "refuses the job: Don't set training instance groups" in refusals["groups alone"]
    assert "Expected a channel name if a channel URI s3://jobs/model.tar.gz" in refusals["inputs"]


@pytest.mark.slow
@pytest.mark.namespaces
@pytest.mark.timeout(300)
def test_a_model_trainer_sends_the_same_job(python: str, tmp_path: Path) -> None:
    with LocalSageMaker(grace_seconds=10) as platform:
        done = run(python, MODEL_TRAINER, tmp_path, **platform.environment)
    assert done.returncode == 0, done.stderr
    assert "does not support EnableSageMakerMetricsTimeSeries, ProfilerConfig" in done.stderr
    sent, by_trainer = json.loads(done.stdout.splitlines()[-1])
    assert sent.pop("ProfilerConfig") == {"DisableProfiler": True}
    assert sent["AlgorithmSpecification"].pop("EnableSageMakerMetricsTimeSeries") is True
    for job in (sent, by_trainer):
        job["HyperParameters"].pop("sagemaker_job_name", None)
    members = REQUESTED & sent.keys()
    assert len(members) > 13
    assert {name: by_trainer.get(name) for name in members} == {name: sent[name] for name in members}


@pytest.mark.slow
def test_the_parameters_are_those_of_v2_with_their_defaults(python: str, tmp_path: Path) -> None:
    from sagemaker.pytorch import PyTorch

    from estimators.sdk import v2

    defaults: dict[str, Any] = {}
    for base in reversed(inspect.getmro(PyTorch)):
        if "__init__" in vars(base) and base is not object:
            signature = inspect.signature(vars(base)["__init__"])
            defaults |= {parameter.name: parameter.default for parameter in signature.parameters.values()}
    done = run(python, PARAMETERS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: defaults[name] for name in v2.parameter_names() - BEYOND_PYTORCH}


PREFERENCES = """
import json, os
import boto3
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.shapes import InstancePreference, MlflowConfig
from estimators import Estimator
from estimators.instances import BEYOND_PYTORCH
from estimators.request.job_request import build

given = json.loads(os.environ["GIVEN"])
alike = {
    **given,
    "instance_preferences": [InstancePreference(**each) for each in given["instance_preferences"]],
    "mlflow_config": MlflowConfig(**given["mlflow_config"]),
}
session = Session(boto3.Session(region_name="us-east-1"))
for arguments in (given, alike):
    assert not Estimator("train.py", **arguments).plan().problems
    parameters = Estimator("train.py", **arguments).arguments
    request, _ = build(parameters, None, script="train.py", job_name="a", session=session)
    print(json.dumps(request.members))
"""


@pytest.mark.slow
def test_preferences_are_sent_as_with_v2(python: str, tmp_path: Path, sagemaker_session: Any) -> None:
    arguments = {
        "role": "arn:aws:iam::123456789012:role/A",
        "framework_version": "2.6.0",
        "py_version": "py312",
        "instance_preferences": [
            {"instance_type": "ml.g5.xlarge", "instance_count": 2},
            {"instance_type": "ml.g6.xlarge", "instance_count": 1},
        ],
        "mlflow_config": {"mlflow_resource_arn": "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/app-1"},
    }
    done = run(python, PREFERENCES, tmp_path, GIVEN=json.dumps(arguments))
    assert done.returncode == 0, done.stderr
    of_v3, by_objects = map(json.loads, done.stdout.splitlines())
    given = Estimator(str(tmp_path / "train.py"), **arguments).arguments
    request, _ = build(given, None, script="train.py", job_name="a", session=sagemaker_session)
    assert request is not None
    of_v2 = request.members
    assert of_v3 == by_objects
    for member in ("ResourceConfig", "MlflowConfig", "HyperParameters"):
        assert of_v3[member] == of_v2[member]
    assert of_v2["ResourceConfig"]["InstancePreferences"][1] == {"InstanceType": "ml.g6.xlarge", "InstanceCount": 1}
    assert not {"InstanceType", "InstanceCount"} & of_v2["ResourceConfig"].keys()


MODEL_PARALLEL = """
from sagemaker.core.helper.session_helper import Session
from sagemaker.train.distributed import SMP
import boto3
from estimators import Estimator
from smddp.job.model_parallel import NAMES

parameters = {"hybrid_shard_degree": 2, "sm_activation_offloading": True, "tensor_parallel_degree": 1}
estimator = Estimator(
    "train.py",
    role="arn:aws:iam::123456789012:role/A",
    image_uri="mine",
    instance_type="ml.g5.12xlarge",
    distribution={
        "torch_distributed": {"enabled": True},
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
    },
    sagemaker_session=Session(boto3.Session("KEY", "SECRET", region_name="us-east-1"), default_bucket="jobs"),
)
plan = estimator.plan()
plan.require()
sent = plan.request.members["HyperParameters"]
assert sent["mp_parameters"] == SMP(**parameters)._to_mp_hyperparameters()["mp_parameters"], sent
assert set(NAMES) == set(SMP.model_fields)
parameters["hybrid_shard_degree"] = 3
(problem,) = estimator.plan().errors
assert "4 ranks are no multiple" in problem.found
"""


@pytest.mark.slow
def test_the_parameters_of_modelparallel_are_sent_as_a_model_trainer_sends_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('training')\n")
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [python_with_sdk_v3(tmp_path / "v3"), "-c", MODEL_PARALLEL]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
