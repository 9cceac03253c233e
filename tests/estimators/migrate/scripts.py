"""Submit scripts as people write them, and what becomes of them."""

from __future__ import annotations

V2 = '''\
#!/usr/bin/env python
"""Train the digits on SageMaker."""

# The SDK.
import sagemaker
from sagemaker.inputs import TrainingInput
from sagemaker.pytorch import PyTorch  # V2

session = sagemaker.Session()

estimator = PyTorch(
    entry_point='train.py',      # the script
    source_dir='code',
    role="arn:aws:iam::123456789012:role/SageMaker",
    framework_version="2.8.0", py_version="py312",
    instance_type="ml.g5.12xlarge",
    instance_count=2,
    # torchrun on each host
    distribution={"torch_distributed": {"enabled": True}},
    hyperparameters={"epochs": 5, "lr": 0.1, "name": "adam"},
    use_spot_instances=True, max_run=3600, max_wait=7200,
    checkpoint_s3_uri="s3://jobs/run-7",
    sagemaker_session=session,
)
estimator.fit({"training": TrainingInput("s3://data/train")}, wait=False, job_name="digits-1")  # sends it
'''

V2_AFTER = V2.replace("from sagemaker.pytorch import PyTorch  # V2", "from estimators import Estimator  # V2").replace(
    "PyTorch(\n", "Estimator(\n"
)

V1_NAMES = """\
import sagemaker

def main():
    estimator = sagemaker.pytorch.PyTorch(
        "train.py", "2.8.0", "py312", "code",
        role="arn:aws:iam::123456789012:role/SageMaker",
        train_instance_type="ml.m5.xlarge",
        train_instance_count=1,
        train_max_run=600,
        script_mode=True,  # of V1
        sagemaker_session=sagemaker.Session(),
    )
    estimator.fit("s3://data/train", False, job_name="digits-2")
    print(estimator.latest_training_job.name)

main()
"""

V1_NAMES_AFTER = """\
import sagemaker
from estimators import Estimator

def main():
    estimator = Estimator(
        "train.py",
        framework_version="2.8.0",
        py_version="py312",
        source_dir="code",
        role="arn:aws:iam::123456789012:role/SageMaker",
        instance_type="ml.m5.xlarge",
        instance_count=1,
        max_run=600,
        # of V1
        sagemaker_session=sagemaker.Session(),
    )
    job = estimator.fit("s3://data/train", False, job_name="digits-2")
    print(job.name)

main()
"""

LOCAL_IMPORT = """\
def describe(kind: str, **more):
    from sagemaker.pytorch.estimator import PyTorch as Torch

    return Torch("train.py", source_dir="code", role="arn:aws:iam::123456789012:role/SageMaker",
                 image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1", instance_count=1,
                 instance_type=kind, **more)

describe("ml.m5.xlarge", volume_size=50).fit(wait=False, job_name="digits-3")
"""

LOCAL_IMPORT_AFTER = LOCAL_IMPORT.replace(
    "from sagemaker.pytorch.estimator import PyTorch as Torch", "from estimators import Estimator"
).replace("return Torch(", "return Estimator(")

GENERIC = """\
from sagemaker.estimator import Estimator

estimator: Estimator = Estimator(
    "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1", "arn:aws:iam::123456789012:role/SageMaker", 1,
    "ml.m5.xlarge",
    entry_point="train.py",
    distribution={"mpi": {"enabled": True}},  # which it ignores
    source_dir="code",
    subnets=["subnet-1"], security_group_ids=["sg-1"],
    tags=[{"Key": "team", "Value": "vision"}],
)
estimator.fit({"training": "s3://data/train"}, wait=False, job_name="digits-4")
"""

GENERIC_AFTER = """\
from estimators import Estimator

estimator: Estimator = Estimator(
    image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
    role="arn:aws:iam::123456789012:role/SageMaker",
    instance_count=1,
    instance_type="ml.m5.xlarge",
    entry_point="train.py",
    # which it ignores
    source_dir="code",
    subnets=["subnet-1"],
    security_group_ids=["sg-1"],
    tags=[{"Key": "team", "Value": "vision"}],
)
estimator.fit({"training": "s3://data/train"}, wait=False, job_name="digits-4")
"""

V3 = """\
# Train the digits.
from sagemaker.train import ModelTrainer

# What it is made of.
from sagemaker.train.configs import (
    CheckpointConfig, Compute, InputData, Networking, OutputDataConfig, S3DataSource, SourceCode,
    StoppingCondition, Tag,
)
from sagemaker.train.distributed import Torchrun

source_code = SourceCode(source_dir="code", entry_script="train.py")  # the script
train_data = InputData(channel_name="train", data_source="s3://data/train")

trainer = ModelTrainer(
    training_image="123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
    role="arn:aws:iam::123456789012:role/SageMaker",
    base_job_name="digits",
    source_code=source_code,
    # two hosts
    compute=Compute(
        instance_type="ml.g5.12xlarge",  # four GPUs each
        instance_count=2,
        volume_size_in_gb=100,
        keep_alive_period_in_seconds=600
    ),  # kept warm
    networking=Networking(subnets=["subnet-1"], security_group_ids=["sg-1"], enable_network_isolation=False),
    stopping_condition=StoppingCondition(max_runtime_in_seconds=7200),
    distributed=Torchrun(),
    checkpoint_config=CheckpointConfig(s3_uri="s3://jobs/run-7", local_path="/opt/ml/checkpoints"),
    output_data_config=OutputDataConfig(s3_output_path="s3://jobs/models", compression_type="NONE"),
    environment={"A": "1"},
    hyperparameters={"lr": 0.1, "epochs": 3},
    tags=[Tag(key="team", value="vision")],
)
trainer.train(
    input_data_config=[
        train_data,  # first
        InputData(
            channel_name="test",
            data_source=S3DataSource(
                s3_data_type="S3Prefix", s3_uri="s3://data/test", s3_data_distribution_type="ShardedByS3Key"
            ),
        ),
    ],
    wait=False,
)
"""

V3_AFTER = """\
# Train the digits.
from estimators import Estimator
from sagemaker.core.inputs import TrainingInput

# What it is made of.

source_code = dict(source_dir="code", entry_point="train.py")  # the script
train_data = {"train": "s3://data/train"}

trainer = Estimator(
    image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
    role="arn:aws:iam::123456789012:role/SageMaker",
    base_job_name="digits",
    **source_code,
    # two hosts
    instance_type="ml.g5.12xlarge",  # four GPUs each
    instance_count=2,
    volume_size=100,
    keep_alive_period_in_seconds=600,  # kept warm
    subnets=["subnet-1"],
    security_group_ids=["sg-1"],
    enable_network_isolation=False,
    max_run=7200,
    distribution="torchrun",
    checkpoint_s3_uri="s3://jobs/run-7",
    checkpoint_local_path="/opt/ml/checkpoints",
    output_path="s3://jobs/models",
    disable_output_compression=True,
    environment={"A": "1"},
    hyperparameters={"lr": 0.1, "epochs": 3},
    tags=[{"Key": "team", "Value": "vision"}],
)
trainer.fit(
    inputs={
        **train_data,  # first
        "test": TrainingInput(
                s3_data_type="S3Prefix", s3_data="s3://data/test", distribution="ShardedByS3Key"
            ),
    },
    wait=False,
)
"""

V3_SHORT = """\
from sagemaker.train.configs import SourceCode, Compute, InputData
from sagemaker.train.distributed import MPI
from sagemaker.train.model_trainer import ModelTrainer, Mode

compute = Compute(instance_count=4)
if compute_on_spot := False:
    pass
ROLE = "arn:aws:iam::123456789012:role/SageMaker"
ModelTrainer(training_image="mine", source_code=SourceCode(source_dir="code", entry_script="train.py"), compute=compute,
    training_mode=Mode.SAGEMAKER_TRAINING_JOB, role=ROLE,
    distributed=MPI(process_count_per_node=2, mpi_additional_options=["-x", 'A="1"'])).train(
        [InputData(channel_name="a", data_source="s3://data/a", content_type="text/csv")], False)
"""

V3_SHORT_AFTER = """\
from estimators import Estimator
from sagemaker.core.inputs import TrainingInput

compute = dict(instance_count=4, instance_type="ml.m5.xlarge")
if compute_on_spot := False:
    pass
ROLE = "arn:aws:iam::123456789012:role/SageMaker"
Estimator(
    image_uri="mine",
    source_dir="code",
    entry_point="train.py",
    **compute,
    role=ROLE,
    distribution={"mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "-x A=\\"1\\""}},
    max_run=3600,
).fit(
        {"a": TrainingInput("s3://data/a", content_type="text/csv")}, False)
"""

OF_V2 = {
    "a job": (V2, V2_AFTER),
    "V1's names": (V1_NAMES, V1_NAMES_AFTER),
    "an import in a function": (LOCAL_IMPORT, LOCAL_IMPORT_AFTER),
    "the generic Estimator": (GENERIC, GENERIC_AFTER),
}
OF_V3 = {"in variables": (V3, V3_AFTER), "on one line": (V3_SHORT, V3_SHORT_AFTER)}
