"""Training hosts are forked from a warm parent that outlives their jobs, and see nothing of one another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typing_extensions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# The driver adopts orphans, which lasts for the life of a process. So it is a process of its own.
DRIVER = """
import json, os, sys, time
from pathlib import Path

from estimators.local.executors import ClusterSpec, HostSpec, ProcessExecutor, inherited_environment
from estimators.local.executors.warm_hosts import WarmHosts

jobs, isolated = json.loads(sys.argv[1]), json.loads(sys.argv[2])
warm = WarmHosts(inherited_environment(sys.executable, hosts=1))
executor = ProcessExecutor(isolated=isolated, warm=warm)
def parents():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()

for name, touched, environment in jobs:
    for path in touched:
        if path == "kill":
            for parent in parents():
                os.kill(int(parent), 9)
        else:
            os.utime(path)
    with executor.cluster(ClusterSpec(name=name, image="image", roots={"algo-1": Path(name)})) as cluster:
        host = cluster.start(HostSpec(name="algo-1", environment={"PYTHONUNBUFFERED": "1", **environment}))
        with host.output as output:
            text = b"".join(iter(lambda: output.read(4096), b"")).decode()
        print(json.dumps([text, host.wait().code, type(host._process).__name__ == "ForkedProcess", len(parents())]))
    while not all(each.is_ready or each.is_closed for each in warm._parents.values()):  # the next job may use them
        time.sleep(0.05)
warm.close()
print(json.dumps(len(parents())))
"""
SCRIPT = """
import json, multiprocessing, multiprocessing.process, os, platform, sys, time
import torch
import smddp

def main():
    print("DRAWN", multiprocessing.current_process().authkey.hex(), torch.initial_seed(), flush=True)
    parent = open(f"/proc/{os.getppid()}/cmdline").read().split("\\0")
    known = sorted(each for each in os.environ if each.startswith("OF_JOB"))
    print("TOLD", json.dumps({
        "warm": "smddp.process.warm_program" in sys.modules, "main": __name__, "argv": sys.argv, "known": known,
        "parent": parent[1:3], "threads": torch.get_num_threads(), "path": sys.path[:2],
        "directory": os.getcwd(), "host": os.environ["SM_CURRENT_HOST"],
        "ml": sorted(os.listdir(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))),
        "temporary": __import__("tempfile").gettempdir(), "shown": "RANK=0" in open("/proc/self/environ").read(),
        "input": sys.stdin.read(), "module": OTHER, "node": platform.node(), "zone": time.timezone,
        "original": multiprocessing.process.ORIGINAL_DIR,
    }), flush=True)

import other
OTHER = other.NAME
if __name__ == "__main__":
    main()
"""


def make_job(root: Path, *, launcher: bool) -> None:
    (root / "input" / "config").mkdir(parents=True)
    (root / "code").mkdir()
    (root / "code" / "train.py").write_text(SCRIPT)
    (root / "code" / "other.py").write_text(f"NAME = {root.name!r}\n")
    of_hosts = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
    (root / "input" / "config" / "resourceconfig.json").write_text(json.dumps(of_hosts))
    parameters: dict[str, Any] = {"sagemaker_program": "train.py", "name": root.name}
    if launcher:
        parameters["sagemaker_torch_distributed_enabled"] = True
    encoded = {name: json.dumps(value) for name, value in parameters.items()}
    (root / "input" / "config" / "hyperparameters.json").write_text(json.dumps(encoded))


def run(directory: Path, jobs: list[tuple[str, list[str], dict[str, str]]], *, isolated: bool) -> list[Any]:
    """Return for each job its output, its code, whether its host was forked, and the parents after it."""
    told = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(jobs), json.dumps(isolated)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "SMDDP_WARM": "1"},
    )
    assert told.returncode == 0, told.stderr
    *ended, left = map(json.loads, told.stdout.splitlines())
    assert left == 0, "children of the process that ran the jobs"
    assert [code for _, code, _, _ in ended] == [0] * len(jobs), ended
    return ended


def told_by(text: str) -> dict[str, Any]:
    line = next(line for line in text.splitlines() if line.startswith("TOLD"))
    return dict(json.loads(line.removeprefix("TOLD ")))


def drawn_by(text: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith("DRAWN")).split()[1:]


@pytest.mark.parametrize("launcher", [True, False], ids=["torchrun", "no launcher"])
@pytest.mark.parametrize("isolated", [pytest.param(True, marks=pytest.mark.namespaces), False])
def test_forked_hosts_are_as_started_ones(tmp_path: Path, launcher: bool, isolated: bool) -> None:
    zone = {"TZ": "Asia/Tokyo"}
    jobs: list[tuple[str, list[str], dict[str, str]]] = [
        ("first", [], {**zone, "OF_JOB_1": "a"}),
        ("second", [], {**zone, "OF_JOB_2": "b"}),
        ("third", [], {**zone, "OF_JOB_2": "b"}),
        ("cold", [], {**zone, "OF_JOB_2": "b", "SMDDP_WARM": "0"}),
    ]
    for name, _, _ in jobs:
        make_job(tmp_path / name, launcher=launcher)
    had_ml = Path("/opt/ml").exists()
    ended = run(tmp_path, jobs, isolated=isolated)
    assert Path("/opt/ml").exists() is had_ml  # it is the hosts' alone
    assert [is_forked for _, _, is_forked, _ in ended] == [False, True, True, False]
    assert not any("start cold" in text or "starts cold" in text for text, _, _, _ in ended[1:]), ended
    _, second, third, cold = (told_by(text) for text, _, _, _ in ended)
    assert (second.pop("warm"), third.pop("warm"), cold.pop("warm")) == (True, True, False)
    assert second["zone"] == -9 * 3600
    assert second["argv"] == ["train.py", "--name", "second"]
    assert json.dumps(second).replace("second", "NAME") == json.dumps(cold).replace("cold", "NAME")
    draws = [drawn_by(text) for text, _, _, _ in ended]
    assert len({key for key, _ in draws}) == len({seed for _, seed in draws}) == len(jobs)


def test_a_package_that_has_changed_is_imported_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second", "third", "fourth"):
        make_job(tmp_path / name, launcher=False)
    package = tmp_path / "packages" / "typing_extensions.py"  # which torch imports
    package.parent.mkdir()
    shutil.copy(typing_extensions.__file__, package)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    jobs: list[tuple[str, list[str], dict[str, str]]] = [
        (name, [str(package)] if name == "third" else [], {}) for name in ("first", "second", "third", "fourth")
    ]
    ended = run(tmp_path, jobs, isolated=False)
    assert [told_by(text)["warm"] for text, _, _, _ in ended] == [False, True, False, True], ended


def test_jobs_outlive_a_killed_parent_and_few_parents_are_kept(tmp_path: Path) -> None:
    one, two = {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}
    environments = [one, one, one, two, {**two, "OMP_WAIT_POLICY": "PASSIVE"}, two, one]
    jobs = [(f"job-{number}", ["kill"] if number == 2 else [], each) for number, each in enumerate(environments)]
    for name, _, _ in jobs:
        make_job(tmp_path / name, launcher=False)
    ended = run(tmp_path, jobs, isolated=False)
    assert [told_by(text)["threads"] for text, _, _, _ in ended] == [1, 1, 1, 2, 2, 2, 1]
    # The third job finds its parent killed. The fifth has the third kind, for which the first kind's parent ends.
    assert [is_forked for _, _, is_forked, _ in ended] == [False, True, False, False, False, True, False]
    assert [parents for _, _, _, parents in ended] == [1, 1, 1, 2, 2, 2, 2]
