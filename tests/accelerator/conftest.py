"""Tests that need an accelerator: a GPU, or the late device, on which `test_late_device` runs them everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from smddp.accelerator import device_kind
from tests.smddp.training.conftest import _end as _end
from tests.smddp.training.conftest import job as job

KIND = device_kind()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents or item.path.name == "test_late_device.py":
            continue
        if KIND is None:
            item.add_marker(pytest.mark.skip(reason="no accelerator: test_late_device.py runs it on the late device"))
        for marker in item.iter_markers("only_on"):
            if KIND not in (None, *marker.args):
                item.add_marker(pytest.mark.skip(reason=f"only on {marker.args[0]}, not on {KIND}"))


@pytest.fixture(autouse=True)
def _no_race() -> Iterator[None]:
    """Fail a test on the late device in which work used memory without waiting, though nothing raised."""
    yield
    if KIND == "late":
        found = torch.late.races()
        torch.late.forget()
        assert not found
