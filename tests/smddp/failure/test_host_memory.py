"""What the kernel's counters tell of a killed process: on directories like /proc and /sys, and on this kernel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smddp.failure import host_memory
from smddp.failure.host_memory import HostMemory, describe_full_shared_memory

VERSION_2 = ("0::/job", "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "sys/fs/cgroup/job", "memory.events")
VERSION_1 = (
    "3:cpu:/other\n2:memory,hugetlb:/job",
    "1 0 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
    "sys/fs/cgroup/memory/job",
    "memory.oom_control",
)
IN_CONTAINER = (
    "2:memory:/docker/ab12",
    "1 0 0:1 /docker/ab12 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
    "sys/fs/cgroup/memory",
    "memory.oom_control",
)


class Machine:
    """A directory with the files that a kernel would show."""

    def __init__(self, root: Path, own: str, mount: str, directory: str, events: str) -> None:
        self.root, self._events, self.cgroup = root, events, root / directory
        self.cgroup.mkdir(parents=True)
        (root / "proc" / "self").mkdir(parents=True)
        (root / "proc" / "self" / "cgroup").write_text(own + "\n")
        (root / "proc" / "self" / "mountinfo").write_text(f"9 0 0:9 / / rw - ext4 /dev/vda rw\n{mount}\n")
        self.count(0, 0)

    def count(self, of_cgroup: int, of_machine: int) -> None:
        (self.cgroup / self._events).write_text(f"oom 7\noom_kill {of_cgroup}\noom_group_kill 0\n")
        (self.root / "proc" / "vmstat").write_text(f"nr_free_pages 1\noom_kill {of_machine}\n")


@pytest.mark.parametrize("version", [VERSION_2, VERSION_1, IN_CONTAINER], ids=["v2", "v1", "in a container"])
def test_an_oom_kill_is_told_by_the_counters_of_before_and_after(tmp_path: Path, version: tuple[str, ...]) -> None:
    machine = Machine(tmp_path, *version)
    machine.count(3, 5)  # an earlier attempt's
    memory = HostMemory(tmp_path)
    assert memory.explain("SIGKILL") == ", by a person or a program: the kernel has counted no OOM kill"
    assert memory.remedy("SIGKILL") == ""
    machine.count(3, 6)
    assert memory.explain("SIGKILL") == ", while the kernel ended a process of this machine for a lack of memory"
    machine.count(4, 7)
    by_kernel = ", by the kernel, because this host ran out of memory (an OOM kill)"
    assert memory.explain("SIGKILL") == by_kernel
    limit = "memory.max" if version is VERSION_2 else "memory.limit_in_bytes"
    (machine.cgroup / limit).write_text("max\n" if version is VERSION_2 else "9223372036854771712\n")
    assert memory.explain("SIGKILL") == by_kernel
    (machine.cgroup / limit).write_text(f"{512 << 20}\n")
    assert memory.explain("SIGKILL") == f"{by_kernel}: it may use 512 MiB"
    assert "more memory" in memory.remedy("SIGKILL")
    assert memory.explain("SIGSEGV") == memory.remedy("SIGSEGV") == ""


def test_without_counters_nothing_is_claimed(tmp_path: Path) -> None:
    assert HostMemory(tmp_path).explain("SIGKILL") == ", often because the host ran out of memory"


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)",
        "Error while creating shared memory segment /dev/shm/nccl-a (size 96), error: No space left on device (28)",
    ],
    ids=["torch", "NCCL"],
)
def test_a_full_dev_shm_is_told_with_its_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str) -> None:
    found = os.statvfs(tmp_path)
    monkeypatch.setattr(host_memory, "SHARED_MEMORY", str(tmp_path))
    told = describe_full_shared_memory(error)
    assert told is not None
    assert f" is full: it has {found.f_blocks * found.f_frsize / 2**20:.0f} MiB, now " in told
    assert "docker run --shm-size" in told
    assert describe_full_shared_memory("OSError: [Errno 28] No space left on device: 'model.pt'") is None


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup with 1 GiB of memory."""
    counter = host_memory._cgroup(Path("/"))
    if counter is None:
        pytest.skip("no cgroup of this process counts its memory")
    directory = counter.parent / f"smddp-test-{os.getpid()}"
    try:
        directory.mkdir()
        limit = directory / ("memory.max" if counter.name == "memory.events" else "memory.limit_in_bytes")
        limit.write_text(str(1 << 30))
    except OSError as error:
        directory.rmdir() if directory.exists() else None
        pytest.skip(f"no cgroup can be made here: {error}")
    yield directory
    for process in (directory / "cgroup.procs").read_text().split():
        os.kill(int(process), 9)
    directory.rmdir()


GREEDY = """
import os, time
taken = []
if os.environ["RANK"] == "1":
    print("loading everything", file=__import__("sys").stderr, flush=True)
    while True:
        taken.append(b"x" * (8 << 20))
time.sleep(600)
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_the_kernel_ends_for_lack_of_memory(limited: Path, tmp_path: Path, ranks: int) -> None:
    (tmp_path / "train.py").write_text(GREEDY)
    words = [sys.executable, "-m", "smddp.launch.torchrun", "--nproc-per-node", str(ranks), str(tmp_path / "train.py")]
    ended = subprocess.run(
        ["sh", "-c", f'echo $$ > {limited}/cgroup.procs && exec "$@"', "sh", *words],
        env={**os.environ, "SMDDP_RUN_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 137, ended.stderr
    assert re.fullmatch(
        rf"Rank 1 of {ranks} on \S+ was killed by SIGKILL, by the kernel, because this host ran out of memory "
        r"\(an OOM kill\): it may use 1024 MiB\.\n"
        r"Use fewer num_workers, smaller batches, or a host with more memory\.\n"
        r"Its last lines on standard error:\n  loading everything",
        (tmp_path / "output" / "failure").read_text(),
    )


FULL = "through which DataLoader workers and NCCL share memory, is full"

LOADS = """
import mmap, os
import torch
import smddp

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if {is_bus_error} and os.environ["RANK"] == "1":
            file = os.open("/dev/shm/full", os.O_RDWR | os.O_CREAT)
            os.ftruncate(file, 64 << 20)
            mmap.mmap(file, 64 << 20).write(bytes(64 << 20))
        return torch.zeros(1 if os.environ["RANK"] == "0" else 1 << 20)

def main(job):
    trainer = smddp.Trainer(job, model := torch.nn.Linear(1, 1), torch.optim.SGD(model.parameters(), lr=0.1))
    workers = int(os.environ["RANK"])  # rank 0 needs no /dev/shm
    for batch in trainer.batches(trainer.loader(Data(), batch_size=16, num_workers=workers)):
        trainer.step(trainer.model(batch[:, :1]).sum())

smddp.run(main)
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_bus_error", "reason", "meaning"),
    [
        (False, "RuntimeError: Caught RuntimeError in DataLoader worker process 0.", f"/dev/shm, {FULL}"),
        (
            True,
            "RuntimeError: DataLoader worker",
            "A DataLoader worker was killed by SIGBUS, often because /dev/shm is full; ",
        ),
    ],
    ids=["an error", "SIGBUS"],
)
def test_a_worker_that_finds_dev_shm_full(tmp_path: Path, is_bus_error: bool, reason: str, meaning: str) -> None:
    (tmp_path / "train.py").write_text(LOADS.format(is_bus_error=is_bus_error))
    words = [sys.executable, "-m", "smddp.launch.torchrun", "--nproc-per-node", "2", str(tmp_path / "train.py")]
    mounted = 'mount -t tmpfs -o size=24m tmpfs /dev/shm && exec "$@"'
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", *words],
        env={**os.environ, "SMDDP_RUN_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    told = (tmp_path / "output" / "failure").read_text()
    assert told.startswith(reason)
    assert " (rank 1 of 2 on " in told
    (explained,) = [line for line in told.splitlines() if line.startswith(meaning)]
    assert "it has 24 MiB, now " in explained
    assert explained.endswith("make it larger: docker run --shm-size=8g.")
