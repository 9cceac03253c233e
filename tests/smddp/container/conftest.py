"""An /opt/ml of the test's own, and the container program on top of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

LEAVES_AN_ORPHAN = """
import os, subprocess, time
left = subprocess.check_output(["sh", "-c", "sleep 0.1 >&- 2>&- & echo $!"], text=True).strip()
end = time.monotonic() + 20
while os.path.exists(f"/proc/{left}") and time.monotonic() < end:  # a zombie is there, too
    time.sleep(0.01)
print(os.path.exists(f"/proc/{left}"))
"""
"""A program that leaves an orphan, and prints whether it stays, be it as a zombie, for 20 s."""


class OptMl:
    """Writes what the platform would write, and runs the program as an image does."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.started: list[subprocess.Popen[str]] = []
        self.hosts(["algo-1"])

    def hosts(self, hosts: list[str], current: str | None = None, **more: Any) -> OptMl:
        return self.config("resourceconfig", {"hosts": hosts, "current_host": current or hosts[0], **more})

    def config(self, name: str, content: object) -> OptMl:
        path = self.base / "input" / "config" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
        return self

    def hyperparameters(self, **values: object) -> OptMl:
        return self.config("hyperparameters", {name: json.dumps(value) for name, value in values.items()})

    def code(self, name: str, text: str) -> OptMl:
        path = self.base / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return self

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
        return {**kept, "SAGEMAKER_BASE_DIR": str(self.base), **(more or {})}

    def start(self, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "smddp.container"],
            env=self.environ(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def train(self, **environ: str) -> subprocess.CompletedProcess[str]:
        process = self.start(**environ)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    @property
    def failure(self) -> str | None:
        path = self.base / "output" / "failure"
        return path.read_text() if path.exists() else None

    @property
    def succeeded(self) -> bool:
        return (self.base / "output" / "success").exists()


@pytest.fixture
def make_opt_ml(tmp_path: Path) -> Iterator[Callable[[str], OptMl]]:
    made: list[OptMl] = []

    def make(name: str) -> OptMl:
        made.append(OptMl(tmp_path / name))
        return made[-1]

    yield make
    for process in [process for opt_ml in made for process in opt_ml.started]:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def opt_ml(make_opt_ml: Callable[[str], OptMl]) -> OptMl:
    return make_opt_ml("ml")
