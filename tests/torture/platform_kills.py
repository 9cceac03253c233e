"""R13: SIGKILL takes any process of a local platform, at any moment, and nothing of it is left.

Each time a platform with a job is started by a parent of its own, one of its processes is killed (server and parent
together count as one), and, if the platform goes on, its parent is ended, too. Then there must be no process, listening
socket, mount, directory or credential of it any more; where the reaper was killed with both, once another platform has
been started on the machine.

    python -m tests.torture.platform_kills [--kills 20] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from estimators.local.directory_reaper_process import remove_left
from tests.torture.outcome import Outcome

_GONE_SECONDS = 60.0
_AT_ONCE = 2
_BAR = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
_BARRED = ("unshare", "--user", "--map-root-user", "sh", "-ec", _BAR, "sh")
_SOCKET = re.compile(r"-([a-z0-9]+)\.port\.grpc=([0-9]+)")
_PARENT = """
import json, sys, time
from estimators.local import LocalSageMaker

with LocalSageMaker(sys.argv[1], storage=sys.argv[2], grace_seconds=1) as platform:
    print(platform.environment["AWS_SECRET_ACCESS_KEY"], flush=True)
    platform.boto_session.client("sagemaker").create_training_job(
        TrainingJobName="job",
        RoleArn=platform.role,
        AlgorithmSpecification={
            "TrainingImage": "image",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["sleep"],
            "ContainerArguments": ["1000"],
        },
        OutputDataConfig={"S3OutputPath": f"s3://{platform.default_bucket}/out"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 300},
    )
    sys.stdin.read()
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Whom SIGKILL takes."""

    name: str
    words: tuple[str, ...]
    """Parts of the command lines of the processes; each must match one."""
    storages: tuple[str, ...] = ("memory", "disk")
    """With what; "barred" is the disk where user namespaces are barred."""
    followed: bool = False
    """Whether the next platform on the machine removes what is left."""


_ALL = ("memory", "disk", "barred")
TARGETS = (
    Target(name="the server", words=("estimators.local.serve",)),
    Target(name="the parent", words=("LocalSageMaker",)),
    Target(name="server and parent", words=("estimators.local.serve", "LocalSageMaker"), storages=_ALL),
    Target(name="the supervisor of a host", words=("host_supervisor.py",)),
    Target(name="the reaper", words=("directory_reaper.py",)),
    # The reaper first: it ends soon after the others.
    Target(name="reaper, server and parent", words=("reaper.py", "local.serve", "LocalSageMaker"), followed=True),
    Target(name="weed", words=("-logtostderr=true",), storages=("disk", "barred")),
)


def kill_platforms(*, kills: int, seed: int, directory: Path) -> Outcome:
    """Kill each target so many times, with each storage that it has to do with.

    Args:
        kills: How many of each.
        seed: Of the moments.
        directory: An empty one.
    """
    chance = random.Random(seed)
    each = [(target, storage) for target in TARGETS for storage in target.storages for _ in range(kills)]
    homes = [directory / str(number) for number in range(len(each))]
    moments = [chance.uniform(0, 0.5) for _ in each]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = list(threads.map(kill, *zip(*each, strict=True), homes, moments))
    failures = [
        f"{target.name}, storage {storage}: {text}"
        for (target, storage), texts in zip(each, found, strict=True)
        for text in texts
    ]
    notes = f"{kills} each of {', '.join(target.name for target in TARGETS)}, by storage"
    return Outcome(done=len(each), unit="kills", notes=notes, failures=tuple(failures))


def kill(target: Target, storage: str, home: Path, seconds: float) -> list[str]:
    """Kill one target of one platform some time after it answers; what is left."""
    home.mkdir()
    program = [sys.executable, "-c", _PARENT, str(home / "platform"), "memory" if storage == "memory" else "disk"]
    parent = subprocess.Popen(
        [*(_BARRED if storage == "barred" else ()), *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(home)},
    )
    assert parent.stdout is not None
    secret = parent.stdout.readline().strip().encode()
    sockets: set[Path] = set()

    def is_complete() -> bool:
        lines = list(_processes(home).values())
        sockets.update(Path(f"/tmp/seaweedfs-{name}-grpc-{port}.sock") for name, port in _SOCKET.findall(str(lines)))
        return all(any(word in line for line in lines) for word in target.words)

    def left() -> list[str]:
        platform = home / "platform"
        kept = {platform / name for name in ("storage", "records", "access")}  # for the next one there
        every = [Path(parent, name) for parent, *names in os.walk(home) for name in (*names[0], *names[1])]
        paths = [path for path in every if path != platform and not kept & {path, *path.parents}]
        return [
            *(f"the process {line}" for line in _processes(home).values()),
            *(f"the path {path}" for path in paths),
            *(f"the secret in {path}" for path in paths if _holds(path, secret)),
            *(f"the socket {path}" for path in sockets if path.exists()),
            *(f"the mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if f"{home}/" in line),
        ]

    time.sleep(seconds)
    assert secret and _await(is_complete), f"the platform, or {target.name}, did not start"
    for word in target.words:
        os.kill(next(pid for pid, line in _processes(home).items() if word in line), signal.SIGKILL)
    time.sleep(0.2)  # in which it may be noticed, and what was killed started again
    is_complete()
    parent.communicate("")  # its own end, unless it was killed

    def is_clean() -> bool:
        if target.followed:
            remove_left(home)
        return not left()

    _await(is_clean)
    return left()


def _processes(home: Path) -> dict[int, str]:
    """What runs of a platform: its environment or its command line names its directory."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (process / "environ").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        if line and (f"{home}/" in line or f"={home}" in environment):
            found[int(process.name)] = line
    return found


def _holds(path: Path, secret: bytes) -> bool:
    try:
        return secret in path.read_bytes()
    except OSError:  # it is gone, or no file
        return False


def _await(condition: Callable[[], bool]) -> bool:
    """Whether it holds, before the time is over."""
    deadline = time.monotonic() + _GONE_SECONDS
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcome = kill_platforms(kills=arguments.kills, seed=arguments.seed, directory=Path(directory))
    print(outcome)
    sys.exit(bool(outcome.failures))


if __name__ == "__main__":
    main()
