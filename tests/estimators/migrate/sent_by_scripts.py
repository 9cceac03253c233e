"""What submit scripts send, with the SDK of this process: each is run, in front of moto.

As a program, ``python -m tests.estimators.migrate.sent_by_scripts SCRIPTS ANSWERS``, it reads scripts from a file of
JSON, and writes what they sent, and the members of V3's classes, to another.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
from botocore.client import BaseClient
from moto import mock_aws

from tests.estimators.data_on_s3 import put_data

_HERE = {"AWS_DEFAULT_REGION": "us-east-1", "SAGEMAKER_VALIDATE_ROLE": "false", "SAGEMAKER_SUPPRESS_V2_WARNING": "1"}


def lay_out_code() -> None:
    """Write the training script into the current directory."""
    Path("code").mkdir()
    Path("code/train.py").write_text("print('training')\n")


def sent_by(scripts: list[str]) -> list[list[dict[str, Any]]]:
    """Run scripts; return for each its CreateTrainingJob requests."""
    answers = []
    with mock_aws(), mock.patch.dict(os.environ, _HERE), mock.patch("requests.get"):  # their telemetry
        put_data(boto3.client("s3"))
        for script in scripts:
            sent: list[dict[str, Any]] = []
            call = BaseClient._make_api_call

            def record(client: Any, name: str, members: dict[str, Any], sent: Any = sent, call: Any = call) -> Any:
                if name == "CreateTrainingJob":
                    sent.append(json.loads(json.dumps(members)))
                return call(client, name, members)

            with mock.patch.object(BaseClient, "_make_api_call", record):
                exec(compile(script, "submit.py", "exec"), {"__name__": "__main__"})
            answers.append(sent)
    return answers


def members_of_v3() -> dict[str, list[str]]:
    """Return the members of V3's classes, and the parameters of its TrainingInput and FileSystemInput."""
    import inspect

    from sagemaker.core import inputs
    from sagemaker.core.training import configs
    from sagemaker.train import ModelTrainer, distributed

    kinds = [ModelTrainer, distributed.Torchrun, distributed.MPI]
    kinds += [getattr(configs, name) for name in configs.__all__ if name != "BaseConfig"]
    members = {kind.__name__: sorted(kind.model_fields) for kind in kinds}
    for name in ("TrainingInput", "FileSystemInput"):
        members[name] = sorted(inspect.signature(getattr(inputs, name)).parameters)
    return members


if __name__ == "__main__":
    lay_out_code()
    answer = {"sent": sent_by(json.loads(Path(sys.argv[1]).read_text())), "members": members_of_v3()}
    Path(sys.argv[2]).write_text(json.dumps(answer))
