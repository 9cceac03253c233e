"""The component ``smddp.train``: one training job, as `estimators.Estimator` describes it.

TorchX treats every function in this file as a component, and reads its options from the docstring.
"""

from torchx import specs


def train(
    *hyperparameters: str,
    script: str,
    instance_type: str,
    source_dir: str | None = None,
    instance_count: int = 1,
    distribution: str | None = None,
    iam_role: str | None = None,
    image: str | None = None,
    name: str | None = None,
    inputs: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    max_run: int = 86400,
    spot_max_wait: int = 0,
    checkpoint_s3_uri: str | None = None,
) -> specs.AppDef:
    """Train a script as a SageMaker job: on AWS, or with -cfg local=True on this machine.

    Args:
        hyperparameters: Each as name=value, such as epochs=3 or optimizer=adam
        script: The training script, in source_dir if that is given
        instance_type: The type of the hosts, such as ml.g5.xlarge
        source_dir: The directory to upload with the script
        instance_count: Number of hosts
        distribution: What starts the ranks: torchrun, pytorchddp, mpi, smdistributed; without it the script alone
        iam_role: The IAM role that the job runs as
        image: An image of your own, instead of SageMaker's for PyTorch
        name: The beginning of the job's name; by default the script's name
        inputs: The channels and their S3 URIs, such as training=s3://bucket/data
        env: Environment variables of the job
        max_run: Seconds that the job may train
        spot_max_wait: Seconds that the job may take on spot instances, including the wait for them; 0 uses none
        checkpoint_s3_uri: The S3 prefix of the checkpoints, from which the next job resumes
    """
    given = {
        "instance_type": instance_type,
        "source_dir": source_dir,
        "distribution": distribution,
        "role": iam_role,
        "inputs": inputs,
        "max_run": max_run,
        "use_spot_instances": spot_max_wait > 0 or None,
        "max_wait": spot_max_wait or None,
        "checkpoint_s3_uri": checkpoint_s3_uri,
    }
    stem = script.rpartition("/")[2].rpartition(".")[0]
    return specs.AppDef(
        name=name or stem.replace("_", "-"),
        roles=[
            specs.Role(
                name="algo",
                image=image or "",
                entrypoint=script,
                args=list(hyperparameters),
                env=dict(env or {}),
                num_replicas=instance_count,
                metadata={f"smddp.{key}": value for key, value in given.items() if value is not None},
            )
        ],
    )
