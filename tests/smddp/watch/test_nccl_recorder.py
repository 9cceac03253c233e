"""What is read from NCCL's recorder, in the form in which PyTorch 2.11 on an H200 gave it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from smddp.watch import nccl_recorder
from smddp.watch.collective_log import CollectiveLog
from smddp.watch.nccl_recorder import Recorded

DUMP: dict[str, Any] = {
    "comm_lib_version": "2.28.9",
    "nccl_comm_state": {},
    "pg_config": {"0": {"desc": "default_pg", "name": "0", "ranks": "[0, 1]"}},
    "pg_status": {
        "0": {
            "last_completed_collective": "27",
            "last_enqueued_collective": "31",
            "last_started_collective": "-1",
        }
    },
    "version": "2.10",
}


def entry(number: int, name: str, dtype: str, size: list[int]) -> dict[str, Any]:
    return {
        "collective_seq_id": number,
        "input_dtypes": [dtype],
        "input_sizes": [size],
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "profiling_name": f"nccl:{name}",
        "state": "scheduled",
    }


@pytest.fixture
def dump(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    told = {**DUMP, "pg_status": {"0": dict(DUMP["pg_status"]["0"])}}
    entries = [entry(28, "all_reduce", "Float", [19722]), entry(29, "_all_gather", "Byte", [4])]

    def answer(collectives: bool, only_active: bool) -> bytes:
        assert only_active
        return json.dumps({**told, "entries": entries} if collectives else told).encode()

    monkeypatch.setattr(_distributed_c10d, "_dump_nccl_trace_json", answer, raising=False)
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "64")
    return told


def set_status(dump: dict[str, Any], *, asked: int, ended: int) -> None:
    dump["pg_status"]["0"] |= {"last_enqueued_collective": str(asked), "last_completed_collective": str(ended)}


def test_a_rank_is_in_the_first_collective_that_its_gpu_has_not_ended(dump: dict[str, Any]) -> None:
    assert nccl_recorder.read() == Recorded(number=28, waits=True)
    set_status(dump, asked=31, ended=31)
    assert nccl_recorder.read() == Recorded(number=31, waits=False)
    set_status(dump, asked=-1, ended=-1)
    assert nccl_recorder.read() == Recorded(number=0, waits=False)


@pytest.mark.parametrize("missing", [{}, {"pg_status": {}}, {"pg_config": {}}])
def test_before_the_first_collective_nothing_is_told(dump: dict[str, Any], missing: dict[str, Any]) -> None:
    dump.update(missing or {"pg_status": {}, "pg_config": {}})
    assert nccl_recorder.read() is None


def test_a_collective_is_described_with_its_shape_where_all_ranks_have_the_same(dump: dict[str, Any]) -> None:
    assert nccl_recorder.describe(28) == "all_reduce of float32 [19722]"
    assert nccl_recorder.describe(29) == "_all_gather"
    assert nccl_recorder.describe(30) == ""


def test_a_pytorch_without_cuda_has_no_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_distributed_c10d, "_dump_nccl_trace_json", raising=False)
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "64")
    assert nccl_recorder.read() is None
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    assert not nccl_recorder.is_on()


def test_the_log_reads_the_recorder_where_pytorch_has_no_hooks(
    dump: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=object()))
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    config, dump["pg_config"] = dump["pg_config"], {}
    log = CollectiveLog()
    assert log.begin()  # the script has made the group, and NCCL connects in the first collective
    assert (log.entered(), log.last(in_call=False)) == ({}, ("", 0, "", False))
    dump["pg_config"] = config
    assert (log.entered(), log.last(in_call=False)) == ({"": 28}, ("", 28, "", True))
    assert (log.entered(), log.last(in_call=False)) == ({"": 28}, ("", 28, "all_reduce of float32 [19722]", True))
    set_status(dump, asked=32, ended=32)
    assert (log.entered(), log.last(in_call=False)) == ({"": 32}, ("", 32, "", False))
    log.end()
    assert not log.is_inside(in_call=True)


def test_the_recorder_is_on_only_if_nobody_else_has_said_how_much_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("register_pre_hook", "register_post_hook"):
        monkeypatch.delattr(dist.ProcessGroup, name, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "__version__", "2.8.0")
    environ: dict[str, str] = {}
    assert nccl_recorder.switch_on(environ) == environ
    assert environ == {"TORCH_FR_BUFFER_SIZE": "64", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    for given in ({"TORCH_FR_BUFFER_SIZE": "0"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}):
        nccl_recorder.switch_on(kept := dict(given))
        assert kept == given


def test_with_hooks_the_recorder_stays_off() -> None:
    if not hasattr(dist.ProcessGroup, "register_pre_hook"):
        pytest.skip("this PyTorch has no hooks")
    environ: dict[str, str] = {}
    nccl_recorder.switch_on(environ)
    assert not environ
