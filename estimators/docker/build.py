"""Build a training image with `docker build`, by BuildKit or the classic builder, from the installed smddp."""

from __future__ import annotations

import os
import re
import subprocess
from collections import deque
from collections.abc import Mapping

from estimators.docker.build_context import build_context
from estimators.docker.build_failure import explain
from estimators.docker.docker_program import DockerError, program, require_engine
from estimators.docker.training_image import TrainingImage
from smddp import __version__
from smddp.process.output_lines import STDOUT, copy_lines

FROM_USER = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_CERT"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
"""Environment variables that lead pip to packages. A build gets those set in this process. Containers of the image do
not see them, but ``docker history`` shows the values of the PIP variables."""

TAIL_LINES = 20
"""Last lines of a failed build that its error repeats."""

_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def build(image: TrainingImage) -> None:
    """Build an image on the engine of the docker program, with docker's own progress on standard output.

    Raise DockerError if no engine answers or the build fails, with its last lines and a remedy.
    """
    require_engine()
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with build_context() as context:
        # Without --force-rm the classic builder leaves the container of a step that failed or was interrupted.
        command = [program(), "build", "--force-rm", "--target", image.target, "--tag", image.tag]
        command += [] if image.network is None else ["--network", image.network]
        for name, value in {"BASE": image.base, "TORCH": image.torch or "", "VERSION": __version__}.items():
            command += ["--build-arg", f"{name}={value}"]
        for name in FROM_USER:
            command += ["--build-arg", name] if os.environ.get(name) else []  # docker looks the value up
        code = _follow([*command, str(context)], tail, os.environ | {"BUILDKIT_PROGRESS": "plain"})
    if code != 0:
        raise DockerError(explain(tail, code, base=image.base))


def _follow(command: list[str], tail: deque[str], environ: Mapping[str, str]) -> int:
    """Run the build to its end, copy its output, keep its last lines, and return its exit code."""

    def keep(lines: bytes) -> None:
        tail.extend(line.rstrip() for line in _COLOUR.sub("", lines.decode(errors="replace")).splitlines())

    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
    )
    assert process.stdout is not None
    try:
        copy_lines(process.stdout.fileno(), STDOUT, keep)
        return process.wait()
    finally:
        process.terminate()  # after Ctrl-C; the engine ends a build whose client is gone
        process.wait()
        process.stdout.close()
