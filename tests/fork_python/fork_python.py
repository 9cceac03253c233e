"""A fork server of one test process, and the program ``python`` in front of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
TORCH = ("torch", "torch._dynamo", "torch.nn.parallel", "torch.distributed.elastic.agent.server.api")
"""What ranks import."""
MODULES = (
    *(*TORCH, "torchvision"),
    *("sagemaker.pytorch", "sagemaker.experiments", "sagemaker.workflow.pipeline_context", "sagemaker.local"),
    *("sklearn.datasets", "matplotlib.figure", "matplotlib.backends.backend_agg"),
    *(f"moto.{part}" for part in ("moto_server.werkzeug_app", "sagemaker", "s3", "logs", "sts", "iam", "cloudwatch")),
)
"""What the server has imported: foreign packages only, for a job brings its own smddp."""

_START_SECONDS = 180.0


class ForkPython:
    """Starts the server with the first program that is asked for, and ends it with `close`.

    What differs from a Python that is started: the processes are the server's children and not their client's (so a
    program that looks at the tree of processes, or dies with its parent, wants the real one), all have one hash seed,
    what a package does or reads when it is imported is done, and none frees its modules at its end, but one with
    ``FORK_PYTHON_FINALIZES`` in its environment, where a test is about that. ``SMDDP_REAL_PYTHON=1`` lets every test
    start the real Python, to look for a difference.
    """

    def __init__(self, directory: Path, *, modules: Sequence[str] = MODULES, path: Sequence[Path] = ()) -> None:
        self._modules = modules
        self._path = path
        """Directories that the server has on its path while it imports, beside those of this environment."""
        self.is_real = bool(os.environ.get("SMDDP_REAL_PYTHON"))
        self.environment = Path(sys.prefix) if self.is_real else directory / "venv"
        """This environment, or the same with such a Python in its ``bin``."""
        self._socket = directory / "server"
        self._server: subprocess.Popen[bytes] | None = None
        if not self.is_real:
            self._imitate(Path(sys.prefix))

    @property
    def executable(self) -> str:
        """The path of a Python that begins with the modules imported."""
        if self.is_real:
            return sys.executable
        self._start()
        return str(self.environment / "bin" / "python")

    @property
    def programs(self) -> str:
        """The directory of ``python`` and ``smddp``, to be put in front of PATH."""
        return str(Path(self.executable).parent)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let ``sys.executable`` be it in a block, for what this process starts and for what that starts."""
        real, sys.executable = sys.executable, self.executable
        try:
            yield
        finally:
            sys.executable = real

    def close(self) -> None:
        """End the server. Programs that run go on."""
        if self._server is not None:
            self._server.kill()  # it ends with its standard input, too, whose other end a fork of this process may hold
            self._server.wait()

    def _imitate(self, real: Path) -> None:
        """Make an environment with the real one's packages and programs."""
        programs = self.environment / "bin"
        programs.mkdir(parents=True)
        for entry in real.iterdir():
            if entry.name != "bin":
                (self.environment / entry.name).symlink_to(entry)
        client = (HERE / "client.py").read_text()
        client = client.replace("@PYTHON@", sys.executable).replace("@SERVER@", str(self._socket))
        for program in (real / "bin").iterdir():
            copy = programs / program.name
            if program.name in {"python", "python3"}:
                copy.write_text(f"#!{sys.executable} -IS\n{client}")
            elif program.name == "smddp":
                copy.write_text(f"#!{programs / 'python'}\n{program.read_text().partition(chr(10))[2]}")
            elif program.name == "activate":
                copy.write_text(program.read_text().replace(str(real), str(self.environment)))
            else:
                copy.symlink_to(program)
                continue
            copy.chmod(0o755)

    def _start(self) -> None:
        if self._server is not None:
            return
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMP_"))}
        command = [
            sys.executable,
            "-I",
            str(HERE / "server.py"),
            str(self._socket),
            *map(str, self._path),
            *self._modules,
        ]
        # One thread: OpenBLAS would start others, which a fork does not take along. OpenMP's threads are those of the
        # forked programs, which share the cores: they sleep while they wait, as tests/conftest.py says.
        self._server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            # The last is what the platform's server sets before it imports moto.
            env=kept
            | {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
            | {"SAGEMAKER_SUPPRESS_V2_WARNING": "1", "MOTO_DISABLE_GLOBAL_CORS": "1"},
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._socket.exists():
            assert self._server.poll() is None, "the fork server ended"
            assert time.monotonic() < deadline, f"the fork server was not there within {_START_SECONDS:g} s"
            time.sleep(0.02)
