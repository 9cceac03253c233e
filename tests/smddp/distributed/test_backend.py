import importlib.machinery
import json
import sys
import types

import pytest
import torch

from smddp.distributed.backend import choose_backend
from smddp.errors import DistributedError

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
ASKS_FOR_SMDDP = {"SM_FRAMEWORK_PARAMS": json.dumps({"sagemaker_distributed_dataparallel_enabled": True})}


@pytest.fixture
def smdistributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for Amazon's package, which is on no index."""
    name = ""
    for part in ("smdistributed", "dataparallel", "torch", "torch_smddp"):
        name = f"{name}.{part}".strip(".")
        module = types.ModuleType(name)
        module.__path__ = []  # type: ignore[attr-defined]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)


def test_gloo_without_a_gpu_and_nccl_beside_gloo_with_one() -> None:
    assert choose_backend(None, CPU, {}) == "gloo"
    assert choose_backend(None, GPU, {}) == "cpu:gloo,cuda:nccl"
    assert choose_backend("gloo", GPU, {}) == "gloo"


@pytest.mark.parametrize("backend", ["nccl", "smddp"])
def test_a_backend_for_gpus_is_refused_on_the_cpu(backend: str) -> None:
    with pytest.raises(DistributedError, match=f"backend='{backend}' needs a CUDA device.*CPU; use backend='gloo'"):
        choose_backend(backend, CPU, {})


def test_an_unknown_backend_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(DistributedError, match="backend='horovod' is unknown; use one of nccl, gloo, mpi, smddp"):
        choose_backend("horovod", CPU, {})


def test_mpi_is_refused_where_torch_was_built_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_mpi_available", lambda: False)
    with pytest.raises(DistributedError, match="no MPI backend"):
        choose_backend("mpi", CPU, {})
    monkeypatch.setattr(torch.distributed, "is_mpi_available", lambda: True)
    assert choose_backend("mpi", CPU, {}) == "mpi"


def test_smddp_is_refused_where_amazons_package_is_missing() -> None:
    with pytest.raises(DistributedError, match=r"smdistributed\.dataparallel.*use backend='nccl'"):
        choose_backend("smddp", GPU, {})


@pytest.mark.usefixtures("smdistributed")
def test_smddp_is_used_where_the_job_asks_for_it_and_it_is_installed() -> None:
    assert choose_backend("smddp", GPU, {}) == "smddp"
    assert choose_backend(None, GPU, ASKS_FOR_SMDDP) == "smddp"
    assert choose_backend(None, GPU, {}) == "cpu:gloo,cuda:nccl"


def test_a_job_that_asks_for_a_missing_smddp_falls_back_loudly(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_backend(None, GPU, ASKS_FOR_SMDDP) == "cpu:gloo,cuda:nccl"
    assert "gradients go over nccl instead" in caplog.text
