"""What the SDK's ``PyTorch`` makes, and what it makes only when it is asked."""

from __future__ import annotations

import copy
from typing import Any

import boto3
import pytest

from estimators import Estimator

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"


def trainer(sagemaker_session: Any) -> Any:
    role = "arn:aws:iam::123456789012:role/SageMaker"
    job = {"entry_point": "train.py", "role": role, "instance_type": "ml.m5.large", "instance_count": 1}
    return Estimator(**job, image_uri=IMAGE, sagemaker_session=sagemaker_session).to_sagemaker()


def test_the_app_of_studio_costs_nothing_before_it_is_used(
    sagemaker_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    make = boto3.client

    def note(*given: Any, **named: Any) -> Any:
        made.append(given)
        return make(*given, **named)

    monkeypatch.setattr(boto3, "client", note)
    pytorch = trainer(sagemaker_session)
    copied = copy.deepcopy(pytorch.tensorboard_app)
    assert made == []
    assert "tensor-board" in copied.get_app_url(open_in_default_web_browser=False)
    assert made == [("sagemaker",)]


def test_the_sdk_keeps_its_own_app(sagemaker_session: Any) -> None:
    import sagemaker.estimator
    from sagemaker.interactive_apps import TensorBoardApp

    trainer(sagemaker_session)
    assert sagemaker.estimator.TensorBoardApp is TensorBoardApp
