"""The names that change: of classes, of parameters, and of the members of V3's configurations.

Tests check the tables against the installed SDKs.
"""

from __future__ import annotations

from collections.abc import Mapping

PYTORCH = frozenset({"sagemaker.pytorch.PyTorch", "sagemaker.pytorch.estimator.PyTorch"})
GENERIC = frozenset({"sagemaker.estimator.Estimator"})
MODEL_TRAINER = frozenset({"sagemaker.train.ModelTrainer", "sagemaker.train.model_trainer.ModelTrainer"})
"""The migrated classes, by each of their import names."""

POSITIONS: Mapping[str, tuple[str, ...]] = {
    "PyTorch": (
        *("entry_point", "framework_version", "py_version", "source_dir", "hyperparameters", "image_uri"),
        *("distribution", "compiler_config", "training_recipe", "recipe_overrides"),
    ),
    "Estimator": (
        *("image_uri", "role", "instance_count", "instance_type", "keep_alive_period_in_seconds", "volume_size"),
        *("volume_kms_key", "max_run", "input_mode", "output_path", "output_kms_key", "base_job_name"),
        *("sagemaker_session", "hyperparameters", "tags", "subnets", "security_group_ids", "model_uri"),
        *("model_channel_name", "metric_definitions", "encrypt_inter_container_traffic", "use_spot_instances"),
        *("max_wait", "checkpoint_s3_uri", "checkpoint_local_path", "enable_network_isolation"),
    ),
}
"""The names of V2's parameters by position, as far as people pass them so."""

PYTORCH_ALONE = frozenset(
    {"framework_version", "py_version", "distribution", "compiler_config", "training_recipe", "recipe_overrides"}
)
"""The parameters of PyTorch that the generic Estimator ignores."""

V1_NAMES: Mapping[str, str] = {
    **{
        f"train_{name}": name
        for name in (
            *("instance_count", "instance_type", "max_run", "max_wait", "use_spot_instances", "volume_size"),
            "volume_kms_key",
        )
    },
    "image_name": "image_uri",
    "distributions": "distribution",
}
"""V1's parameters with another name in V2."""

TRAINER_PARAMETERS: Mapping[str, str] = {
    "role": "role",
    "base_job_name": "base_job_name",
    "sagemaker_session": "sagemaker_session",
    "training_image": "image_uri",
    "training_input_mode": "input_mode",
    "hyperparameters": "hyperparameters",
    "environment": "environment",
    "distributed": "distribution",
    "tags": "tags",
}
"""ModelTrainer's parameters that the Estimator has, and the Estimator's names for them."""

CONFIGURATIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "source_code": ("SourceCode", {"source_dir": "source_dir", "entry_script": "entry_point"}),
    "compute": (
        "Compute",
        {
            "instance_type": "instance_type",
            "instance_count": "instance_count",
            "volume_size_in_gb": "volume_size",
            "volume_kms_key_id": "volume_kms_key",
            "keep_alive_period_in_seconds": "keep_alive_period_in_seconds",
            "training_plan_arn": "training_plan",
            "enable_managed_spot_training": "use_spot_instances",
        },
    ),
    "networking": (
        "Networking",
        {
            "subnets": "subnets",
            "security_group_ids": "security_group_ids",
            "enable_network_isolation": "enable_network_isolation",
            "enable_inter_container_traffic_encryption": "encrypt_inter_container_traffic",
        },
    ),
    "stopping_condition": (
        "StoppingCondition",
        {"max_runtime_in_seconds": "max_run", "max_wait_time_in_seconds": "max_wait"},
    ),
    "checkpoint_config": ("CheckpointConfig", {"s3_uri": "checkpoint_s3_uri", "local_path": "checkpoint_local_path"}),
    "output_data_config": ("OutputDataConfig", {"s3_output_path": "output_path", "kms_key_id": "output_kms_key"}),
}
"""ModelTrainer's parameters that bundle several of the Estimator's: the name of their class, and their members."""

REQUIRED: Mapping[str, Mapping[str, str]] = {
    "source_code": {"entry_script": "the Estimator starts a script"},
    "checkpoint_config": {"s3_uri": "ModelTrainer makes up an S3 prefix, a new one for each job"},
}
"""Members without which a configuration can't be migrated, and why."""

DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "compute": {"instance_type": '"ml.m5.xlarge"'},
    "stopping_condition": {"max_run": "3600"},
}
"""ModelTrainer's defaults that the Estimator does not have: parameters and values."""

NO_PLACE: Mapping[str, str] = {
    "command": "Give the script as entry_script, or run the command from a script of yours.",
    "args": "Give the values as hyperparameters.",
    "ignore_patterns": "Write the patterns to .smddpignore in source_dir, and remove it.",
    "requirements": "The training toolkit installs requirements.txt in source_dir: rename the file.",
    "instance_groups": "Give the Estimator instance_groups with sagemaker.core.instance_group.InstanceGroup.",
    "instance_placement_config": "Give the Estimator instance_placement_config as a dict.",
    "instance_preferences": "Give the Estimator instance_preferences as a list of types, or of dicts.",
    "max_pending_time_in_seconds": "Remove it: the Estimator has no such limit.",
    "compression_type": 'Write "GZIP" or "NONE" out, or give the Estimator disable_output_compression.',
    "algorithm_name": "Give a training_image: the Estimator trains a script, and no algorithm of the marketplace.",
    "input_data_config": "Give the channels to train().",
    "training_mode": 'Use instance_type="local", see docs/how-to/local-mode.md.',
    "training_image_config": "Give the Estimator training_repository_access_mode, and the credentials provider's ARN.",
    "input_s3_key_prefix": "Give the Estimator code_location.",
    "local_container_root": "Remove it.",
    "smp": "Give the Estimator distribution with smdistributed.modelparallel: see docs/how-to/sharded-model.md.",
}
"""Parameters of ModelTrainer that the Estimator has in no such form, and what to do."""

TRAINING_INPUT: Mapping[str, str] = {
    "s3_uri": "s3_data",
    "s3_data_type": "s3_data_type",
    "s3_data_distribution_type": "distribution",
    "attribute_names": "attribute_names",
    "instance_group_names": "instance_groups",
}
"""The members of S3DataSource, as parameters of TrainingInput."""

FILE_SYSTEM_INPUT: Mapping[str, str] = {
    name: name for name in ("file_system_id", "file_system_type", "directory_path", "file_system_access_mode")
}
"""The members of FileSystemDataSource, as parameters of FileSystemInput."""

OF_THE_JOB: Mapping[str, str] = {
    "model_data": "model_data",
    "latest_training_job.name": "name",
    "latest_training_job.job_name": "name",
    "latest_training_job.describe": "describe",
    "latest_training_job.wait": "wait",
    "latest_training_job.stop": "stop",
}
"""Attributes of V2's estimator after ``fit``, and their names on the TrainingJob that the Estimator's ``fit``
returns."""
