from __future__ import annotations

import pytest

from smddp.cluster.gpus import count_gpus, count_visible, host_gpus, no_gpus


def test_counts_what_nvidia_smi_lists(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A10G (UUID: x)'\necho 'GPU 1: NVIDIA A10G (UUID: y)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert count_gpus({}) == 2
    assert count_gpus({"SMDDP_HOST_GPUS": "1"}) == 1


def test_counts_device_files_without_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    assert count_gpus({}, tmp_path) == 3


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("", 0), ("0,2", 2), ("GPU-a,GPU-b,GPU-c", 3), ("0,1,2,3,4", 4), ("-1", 0), ("0,-1,1", 1)],
)
def test_a_job_can_use_those_that_are_visible(visible, count):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_visible(4, environ) == count


def test_hosts_of_one_machine_have_gpus_of_their_own():
    assert [each["CUDA_VISIBLE_DEVICES"] for each in host_gpus(2, 5, {})] == ["0,1", "2,3"]
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert [each["CUDA_VISIBLE_DEVICES"] for each in host_gpus(2, 5, environ)] == ["GPU-a", "GPU-b"]
    for each in host_gpus(2, 5, {}):
        assert count_visible(count_gpus(each), each) == 2


def test_more_hosts_than_gpus_share_them_and_tell_nccl_so():
    shares = host_gpus(3, 2, {})
    assert [each["CUDA_VISIBLE_DEVICES"] for each in shares] == ["0", "1", "0"]
    assert len({each["NCCL_HOSTID"] for each in shares}) == 3
    assert {count_gpus(each) for each in shares} == {1}


@pytest.mark.parametrize(
    ("hosts", "gpus", "environ"), [(1, 8, {}), (2, 0, {}), (3, 2, {"CUDA_VISIBLE_DEVICES": ""}), (0, 2, {})]
)
def test_a_host_with_all_gpus_or_on_a_machine_without_gets_no_variables(hosts, gpus, environ):
    assert host_gpus(hosts, gpus, environ) == [{}] * hosts


def test_a_host_of_a_type_without_gpus_sees_none():
    assert count_visible(count_gpus(no_gpus(2)), no_gpus(2)) == 0
    assert no_gpus(0) == {}
