from __future__ import annotations

from typing import Any

import pytest

from estimators.request.backend import Backend
from estimators.sdk import adapter as sdk


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
