import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from smddp.distributed.backend import choose_backend
from smddp.errors import DistributedError

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
ASKS_FOR_SMDDP = {"SM_FRAMEWORK_PARAMS": json.dumps({"sagemaker_distributed_dataparallel_enabled": True})}


@pytest.fixture
def install_smddp(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes it seem that Amazon's package is installed, and was built for these devices."""

    def install(*devices: str) -> None:
        name = ""
        for part in ("smdistributed", "dataparallel", "torch", "torch_smddp"):
            name = f"{name}.{part}".strip(".")
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        if devices:
            monkeypatch.setitem(torch.distributed.Backend.backend_capability, "smddp", list(devices))

    return install


def test_gloo_without_a_gpu_and_nccl_beside_gloo_with_one() -> None:
    assert choose_backend(None, CPU, {}) == "gloo"
    assert choose_backend(None, GPU, {}) == "cpu:gloo,cuda:nccl"
    assert choose_backend("gloo", GPU, {}) == "gloo"


def test_nccl_is_refused_on_the_cpu() -> None:
    with pytest.raises(DistributedError, match=r"backend='nccl' needs a CUDA device.*CPU; use backend='gloo'"):
        choose_backend("nccl", CPU, {})


def test_an_unknown_backend_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(DistributedError, match="backend='horovod' is unknown; use one of nccl, gloo, mpi, smddp"):
        choose_backend("horovod", CPU, {})


def test_mpi_is_refused_where_torch_was_built_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_mpi_available", lambda: False)
    with pytest.raises(DistributedError, match="no MPI backend"):
        choose_backend("mpi", CPU, {})
    monkeypatch.setattr(torch.distributed, "is_mpi_available", lambda: True)
    assert choose_backend("mpi", CPU, {}) == "mpi"


@pytest.mark.parametrize(("device", "instead"), [(GPU, "nccl"), (CPU, "gloo")])
def test_smddp_is_refused_where_amazons_package_is_missing(device: torch.device, instead: str) -> None:
    with pytest.raises(DistributedError, match=rf"smdistributed\.dataparallel.*not installed; use backend='{instead}'"):
        choose_backend("smddp", device, {})


@pytest.mark.parametrize("device", [GPU, CPU])
def test_smddp_is_used_where_the_job_asks_for_it_and_it_carries_the_devices_tensors(
    device: torch.device, install_smddp: Callable[..., None]
) -> None:
    install_smddp(device.type)
    assert choose_backend("smddp", device, {}) == "smddp"
    assert choose_backend(None, device, ASKS_FOR_SMDDP) == "smddp"
    assert choose_backend(None, device, {}) != "smddp"


def test_smddp_that_was_built_for_other_devices_is_refused(install_smddp: Callable[..., None]) -> None:
    install_smddp("cuda")
    with pytest.raises(DistributedError, match="is for cuda, and this rank runs on the CPU; use backend='gloo'"):
        choose_backend("smddp", CPU, {})
    assert choose_backend(None, CPU, ASKS_FOR_SMDDP) == "gloo"


def test_a_package_that_registers_no_backend_is_none(install_smddp: Callable[..., None]) -> None:
    install_smddp()
    with pytest.raises(DistributedError, match="is for no device"):
        choose_backend("smddp", GPU, {})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("import missing_part_of_smddp", "lacks something: No module named 'missing_part_of_smddp'"),
        ("raise RuntimeError('no EFA')", "can't be loaded: no EFA"),
        ("raise ImportError('libsmddp.so: cannot open')", "can't be loaded: libsmddp.so: cannot open"),
    ],
)
def test_a_broken_package_is_said_to_be_broken(
    content: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "smdistributed" / "dataparallel" / "torch"
    place.mkdir(parents=True)
    (place / "torch_smddp.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("smdistributed", "smdistributed.dataparallel", "smdistributed.dataparallel.torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(DistributedError, match=reason):
        choose_backend("smddp", GPU, {})


@pytest.mark.parametrize(("device", "instead"), [(GPU, "cpu:gloo,cuda:nccl"), (CPU, "gloo")])
def test_a_job_that_asks_for_a_missing_smddp_falls_back_loudly(
    device: torch.device, instead: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_backend(None, device, ASKS_FOR_SMDDP) == instead
    assert "THE JOB ASKS FOR SMDDP" in caplog.text
    assert f"gradients go over {instead.rpartition(':')[2]} instead" in caplog.text
