"""Build a training image with `docker build`, by BuildKit or the classic builder, from the installed smddp.

The build context is the recipe, the tested versions and the installed package. The recipe is the repository's docker/
folder; a wheel contains it and the versions, so no checkout is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from estimators.docker.docker_program import DockerError, program, require_engine
from estimators.source_code import PACKAGE, REQUIREMENTS, package_directory
from smddp import __version__
from smddp.process.output_lines import STDOUT, copy_lines
from smddp.python_syntax import call_parser

_CHECKOUT = Path(__file__).parents[2]
_INSTALLED = Path(__file__).with_name("recipe")
RECIPE = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT / "docker"
"""Directory of the Dockerfile and of make-base, which makes a base image where no registry can be reached."""
_CONSTRAINTS = (_INSTALLED if _INSTALLED.is_dir() else _CHECKOUT) / "constraints.txt"
FROM_USER = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_CERT"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
"""Environment variables that lead pip to packages. A build gets those set in this process. Containers of the image do
not see them, but ``docker history`` shows the values of the PIP variables."""
TAIL_LINES = 20
"""Last lines of a failed build that its error repeats."""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")

Target = Literal["smddp", "toolkit"]


@dataclass(kw_only=True, slots=True, frozen=True)
class TrainingImage:
    """Options of one build."""

    tag: str
    """Name of the image on this machine, such as ``smddp-training``."""
    target: Target = "smddp"
    """Source of the image's `train` program: ``smddp`` itself, or ``toolkit`` for AWS's training toolkit."""
    base: str = "python:3.11-slim"
    """Base image. CUDA, torch, MPI and the toolkit stay as they are in it."""
    torch: str | None = None
    """Requirements and options for pip's first install, such as ``torch==2.8.0 torchvision``. None keeps the base's
    torch, or installs the tested version."""
    network: str | None = None
    """Network of the build's steps, such as ``host``. None leaves the choice to the engine."""


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


@contextmanager
def build_context() -> Iterator[Path]:
    """Make a temporary directory with the Dockerfile and everything it copies; remove it at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="smddp-image-") as name:
        context = Path(name)
        shutil.copytree(RECIPE, context, dirs_exist_ok=True)
        shutil.copy(_CONSTRAINTS, context)
        (context / REQUIREMENTS).write_text("".join(f"{requirement}\n" for requirement in _requirements()))
        shutil.copytree(package_directory(), context / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        yield context


def _requirements() -> list[Requirement]:
    """Return the requirements of smddp without its extras."""
    declared = [call_parser(Requirement, text) for text in requires(PACKAGE) or ()]
    return [each for each in declared if "extra" not in str(each.marker or "")]


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


_CAUSES = (
    (
        r"no space left on device",
        "The disk of the Docker engine is full. `docker system df` shows what takes the space; an image with torch's "
        "CUDA build takes 7 GB.",
    ),
    (
        r"TLS CA certificate bundle, invalid path",
        "PIP_CERT is set here, and the base has no such file. Unset it, or put the certificates into the base.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|SSLError",
        "The base does not trust the certificates on the way to the package index. Put your certificate authority "
        "into the base, and set PIP_CERT to its bundle there.",
    ),
    (
        r"Temporary failure (in name resolution|resolving)|Could not resolve|Network is unreachable|Failed to fetch",
        "The build can't reach the package indexes. Try `--network host`; behind a proxy set HTTP_PROXY, HTTPS_PROXY "
        "and PIP_INDEX_URL.",
    ),
    (
        r"apt-get: (command )?not found",
        "The base has no apt: take an image of Debian or Ubuntu.",
    ),
    (
        r"No matching distribution found|ResolutionImpossible",
        "pip finds no versions that fit. What the base has stays as it is: take another base, or say what to install "
        "with --torch.",
    ),
)

_STEP = re.compile(r"(?:Step \d+/\d+ :| > \[[^\]]*\]|#\d+ \[[^\]]*\]) (.*)")
"""Beginning of a step in the classic builder and in BuildKit's plain progress. BuildKit repeats it for the failed
step."""


def explain(tail: Sequence[str], code: int, *, base: str) -> str:
    """Return the message of a failed build: its exit code, its last lines, and a remedy if one is known."""
    lines = [f"docker build ended with exit code {code}.", *(f"    {line}" for line in tail if line)]
    remedy = _remedy(tail, base=base)
    return "\n".join([*lines, remedy] if remedy else lines)


def _remedy(tail: Sequence[str], *, base: str) -> str | None:
    said = "\n".join(tail)
    for pattern, remedy in _CAUSES:
        if re.search(pattern, said, re.IGNORECASE):
            return remedy
    steps = [step[1] for line in tail if (step := _STEP.match(line))]
    if steps and steps[-1].startswith(("FROM ", "load metadata for ")):
        return (
            f"The base {base} is not on this machine, and can't be pulled. See that its name is right, log in to its "
            "registry (`docker login`), or give one that is here with --base: `docker images` lists them. Where no "
            f"registry can be reached, {RECIPE / 'make-base'} makes one."
        )
    return None
