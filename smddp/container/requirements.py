"""Installs requirements.txt, the job's needs beyond the image, into the job's own environment.

Never into the interpreter that runs this program, which on a laptop is the user's own. If all requirements are met,
nothing is done. Otherwise a virtual environment in the job's tree, which sees this interpreter's packages, gets the
rest by pip.
"""

from __future__ import annotations

import logging
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from smddp.container.job_process import StoppedBeforeStart, raise_on_stop, run
from smddp.container.virtual_environment import make_environment
from smddp.errors import SourceError
from smddp.process.heartbeat import Heartbeat
from smddp.python_syntax import call_parser

logger = logging.getLogger(__name__)

ADDED = "# Added with smddp:"
"""The line of requirements.txt above those that the bundle adds to the user's own."""
_SOURCES = ("--index-url", "-i", "--extra-index-url", "--no-index", "--find-links", "-f", "--trusted-host", "--pre")
"""Options that name package sources, and request no package."""
_END = "[end of output]"
_BLOCK = re.compile(
    rf"^[ │]*╰─> \[\d+ lines of output\]\n(?P<output>.*?)^ *{re.escape(_END)}$", re.MULTILINE | re.DOTALL
)
"""pip's block around the output of a program that failed."""
_CLOSING = ("note:", "hint:", "[notice]", "WARNING: There was an error checking")
_CAUSE_LINES = 8


def install_requirements(code_dir: Path, environment_dir: Path, *, package: bool, environ: Mapping[str, str]) -> str:
    """Install the code's requirements, and the code itself if it is a package; return the job's interpreter.

    ``environment_dir`` gets the virtual environment if anything is to be installed; pip reads PIP_* from ``environ``.
    Raise SourceError, with pip's reason, if that fails, StoppedBeforeStart if a stop comes meanwhile.
    """
    requirements = code_dir / "requirements.txt"
    wanted = ["-r", requirements.name] if requirements.is_file() else []
    if wanted and not package and already_installed(lines := _lines(requirements)):
        own = lines[: lines.index(ADDED)] if ADDED in lines else lines
        if any(map(_names_a_package, own)):
            logger.info("All of requirements.txt is installed already.")
        return sys.executable
    if package:
        wanted.append(".")
    if not wanted:
        return sys.executable
    if environ.get("CA_REPOSITORY_ARN"):
        logger.warning("CA_REPOSITORY_ARN is not read here: name the CodeArtifact index in PIP_INDEX_URL.")
    python = make_environment(environment_dir)
    logger.info("Installing %s into %s.", " ".join(wanted), environment_dir)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--disable-pip-version-check", "--no-input"]
    with Heartbeat("installing"):
        result = run([*pip, *wanted], environ=environ, directory=code_dir, group=True)
    if result.stop is not None:
        raise StoppedBeforeStart(result.stop)
    raise_on_stop()
    if result.code != 0:
        raise SourceError(f"pip could not install {' '.join(wanted)} (exit code {result.code}):\n{cause(result.tail)}")
    return str(python)


def cause(output: str) -> str:
    """Return the lines of pip's output that explain a failure: at most 8, and what failed.

    If a program that pip ran failed, such as a build, these are the last lines of its output, which pip shows in a
    block before its own closing lines. Otherwise they are pip's last lines without its hints.
    """
    blocks = list(_BLOCK.finditer(output))
    if not blocks and _END in output:  # the block is so long that its beginning was not kept
        shown = textwrap.dedent(output.rpartition(_END)[0]).splitlines()
        return "\n".join([line for line in shown if line.strip()][-_CAUSE_LINES:])
    if not blocks:
        said = [line for line in output.strip().splitlines() if not line.startswith(_CLOSING)]
        return "\n".join(said[-_CAUSE_LINES:])
    last = blocks[-1]
    what = [line for line in output[: last.start()].splitlines() if "×" in line][-1:]
    shown = [line for line in textwrap.dedent(last["output"]).splitlines() if line.strip()]
    return "\n".join([*(line.strip(" ×│") for line in what), *shown[-_CAUSE_LINES:]])


def already_installed(lines: Iterable[str]) -> bool:
    """Return whether each requirement is plain (a name, versions, a marker) and met by this interpreter.

    Other requirements, such as a URL, extras, hashes or another file, are left to pip: the answer is False.
    """
    # Slow to import, and only jobs with requirements need them.
    from importlib.metadata import PackageNotFoundError, version

    from packaging.requirements import InvalidRequirement, Requirement

    for line in filter(_names_a_package, lines):
        try:
            requirement = call_parser(Requirement, line.split(" #")[0].strip())
            if requirement.marker is not None and not requirement.marker.evaluate():
                continue
            if requirement.url or requirement.extras:
                return False
            if not requirement.specifier.contains(version(requirement.name), prereleases=True):
                return False
        except (InvalidRequirement, PackageNotFoundError):
            return False
    return True


def _names_a_package(line: str) -> bool:
    """Return whether a line is more than a comment or an option about package sources."""
    text = line.split(" #")[0].strip()
    return bool(text) and not text.startswith("#") and re.split(r"[\s=]", text)[0] not in _SOURCES


def _lines(requirements: Path) -> list[str]:
    """Return the file's lines in pip's encoding. Replaced invalid bytes make no plain requirement."""
    return requirements.read_text(encoding="utf-8", errors="replace").splitlines()
