"""Tests that need an accelerator: a GPU, or the late device, on which `test_late_device` runs them everywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from smddp.accelerator import device_kind
from tests.accelerator import late_device
from tests.fork_python import TORCH, ForkPython
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


@pytest.fixture(scope="session")
def _late_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkPython | None]:
    """Yield a Python whose processes begin with torch and the late device, None on another device."""
    if KIND != "late":
        yield None
        return
    python = ForkPython(tmp_path_factory.mktemp("fork-python"), modules=TORCH, path=late_device.path())
    yield python
    python.close()


@pytest.fixture
def forked_ranks(_late_server: ForkPython | None) -> Iterator[None]:
    """Fork the processes that the test starts, if they are on the late device; on a GPU, start them."""
    with contextlib.nullcontext() if _late_server is None else _late_server.in_use():
        yield


@pytest.fixture(autouse=True)
def _no_race() -> Iterator[None]:
    """Fail a test on the late device in which work used memory without waiting, though nothing raised."""
    yield
    if KIND == "late":
        found = torch.late.races()
        torch.late.forget()
        assert not found
