"""The examples in public docstrings run."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "smddp.metrics.device_use",
        "smddp.metrics.profile",
        "smddp.metrics.running_mean",
        "smddp.metrics.tracking",
        "smddp.training.checkpoint_policy",
        "smddp.training.early_stopping",
        "smddp.training.precision",
        "smddp.cluster.cluster",
        "smddp.data.fingerprint",
        "smddp.data.order.sampler",
        "smddp.job.hyperparameters.sources",
        "smddp.job.hyperparameters.codec",
        "smddp.job.channels",
        "smddp.job.job",
        "smddp.hydra.composed",
        pytest.param("smddp.lightning", marks=pytest.mark.loops),
        pytest.param("smddp.transformers", marks=pytest.mark.loops),
    ],
)
def test_examples_run(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0
