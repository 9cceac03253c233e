"""The examples in public docstrings run."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "smddp.checkpoint_interval",
        "smddp.checkpoint_policy",
        "smddp.cluster.cluster",
        "smddp.hyperparameters.command_line",
        "smddp.hyperparameters.decode",
        "smddp.hyperparameters.encode",
        "smddp.hyperparameters.sources",
        "smddp.inputs",
        "smddp.job",
    ],
)
def test_examples_run(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0
