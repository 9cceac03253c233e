"""requirements.txt: what a job needs beyond the image, installed into the job's own environment.

Never into the interpreter that runs this program: on a laptop that is the user's own. If all that is asked for is
there already, nothing is done. Otherwise a virtual environment is made in the job's tree which sees everything that
this interpreter sees, and pip installs the rest into it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from smddp.container.job_process import StoppedBeforeStart, raise_on_stop, run
from smddp.errors import SourceError

logger = logging.getLogger(__name__)

_SOURCES = ("--index-url", "-i", "--extra-index-url", "--no-index", "--find-links", "-f", "--trusted-host", "--pre")
"""Options that say where to look, and ask for nothing."""
_END = "[end of output]"
_BLOCK = re.compile(
    rf"^[ │]*╰─> \[\d+ lines of output\]\n(?P<output>.*?)^ *{re.escape(_END)}$", re.MULTILINE | re.DOTALL
)
"""How pip shows the output of a program that failed."""
_CLOSING = ("note:", "hint:", "[notice]", "WARNING: There was an error checking")
_CAUSE_LINES = 8


def install_requirements(code_dir: Path, environment_dir: Path, *, package: bool, environ: Mapping[str, str]) -> str:
    """Install what the code asks for.

    Args:
        code_dir: Where requirements.txt may stand.
        environment_dir: Where the virtual environment goes, if there is something to install.
        package: Whether the code is a package (it has a setup.py) that has to be installed, too.
        environ: The environment of pip, which reads PIP_* variables.

    Returns:
        The interpreter that the job's processes run with.

    Raises:
        SourceError: The installation failed; the lines that say why are in the message.
        StoppedBeforeStart: A stop came meanwhile.
    """
    requirements = code_dir / "requirements.txt"
    wanted = ["-r", requirements.name] if requirements.is_file() else []
    if wanted and not package and already_installed(_lines(requirements)):
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
    result = run([*pip, *wanted], environ=environ, directory=code_dir, group=True)
    if result.stop is not None:
        raise StoppedBeforeStart(result.stop)
    raise_on_stop()
    if result.code != 0:
        raise SourceError(f"pip could not install {' '.join(wanted)} (exit code {result.code}):\n{cause(result.tail)}")
    return str(python)


def cause(output: str) -> str:
    """Return the lines of pip's output that say why it failed, at most 8 and what failed.

    Of a program that pip ran, such as a build, these are the last ones of the program's own output, which pip shows in
    a block; behind it pip has only closing words. Else they are pip's last lines without its hints.
    """
    blocks = list(_BLOCK.finditer(output))
    if not blocks and _END in output:  # it is so long that its beginning was not kept
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

    Whatever is not plain, such as a URL, extras, hashes or another file, is pip's to judge: the answer is no.
    """
    from importlib.metadata import PackageNotFoundError, version

    from packaging.requirements import InvalidRequirement, Requirement

    for line in lines:
        text = line.split(" #")[0].strip()
        if not text or text.startswith("#") or re.split(r"[\s=]", text)[0] in _SOURCES:
            continue
        try:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate():
                continue
            if requirement.url or requirement.extras:
                return False
            if not requirement.specifier.contains(version(requirement.name), prereleases=True):
                return False
        except (InvalidRequirement, PackageNotFoundError):
            return False
    return True


def _lines(requirements: Path) -> list[str]:
    """Return the file's lines, in the encoding that pip expects; a file that is no text has no plain requirement."""
    return requirements.read_text(encoding="utf-8", errors="replace").splitlines()


def make_environment(directory: Path) -> Path:
    """Make a virtual environment that sees all that this interpreter sees; its interpreter, which has no pip.

    Args:
        directory: Where; what is there is removed.
    """
    import venv

    venv.EnvBuilder(symlinks=True, clear=True).create(directory)
    python = directory / "bin" / "python"
    own = Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(directory)}))
    shared = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    # addsitedir, unlike a plain path, follows the .pth files there: editable installs.
    own.joinpath("shared.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in shared))
    return python


def activated(environ: Mapping[str, str], python: str) -> dict[str, str]:
    """Return an environment in which programs find this interpreter, and the scripts beside it, first."""
    programs = str(Path(python).parent)
    return {**environ, "PATH": os.pathsep.join([programs, *filter(None, [environ.get("PATH")])])}
