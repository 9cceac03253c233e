from __future__ import annotations

import pytest

from smddp.cluster.gpus import count_gpus, count_visible


def test_counts_what_nvidia_smi_lists(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A10G (UUID: x)'\necho 'GPU 1: NVIDIA A10G (UUID: y)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert count_gpus() == 2


def test_counts_device_files_without_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    assert count_gpus(tmp_path) == 3


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 4), ("", 0), ("0,2", 2), ("GPU-a,GPU-b,GPU-c", 3), ("0,1,2,3,4", 4)]
)
def test_a_job_can_use_those_that_are_visible(visible, count):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert count_visible(4, environ) == count
