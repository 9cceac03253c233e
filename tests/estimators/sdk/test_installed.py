"""Which SDK a machine has, and what is said of one that has none, half of one, or parts of two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from estimators.sdk.installed import installed

PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
from estimators.sdk.installed import installed
print(installed())
assert "sagemaker" not in sys.modules
"""


def install(directory: Path, *parts: str) -> Path:
    """Make a directory of packages with parts of the SDKs; return it."""
    for part in ("", *parts):
        (directory / "sagemaker" / part).mkdir(parents=True)
        (directory / "sagemaker" / part / "__init__.py").write_text("raise ImportError('only looked for')\n")
    return directory


def ask(*path: Path) -> tuple[str, str]:
    """Return what a process says whose path begins with some directories: its output, and its last line of error."""
    command = [sys.executable, "-c", PROGRAM, *map(str, path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip(), (done.stderr.splitlines() or [""])[-1]


def test_here_it_is_v2() -> None:
    assert installed() == "V2"


@pytest.mark.parametrize(
    ("directories", "found"),
    [
        ([["pytorch"]], "V2"),
        ([["core", "train"]], "V3"),
        ([["core"], ["train"]], "V3"),
        ([["pytorch"], ["core", "train"]], "V2"),
        ([["core", "train"], ["pytorch"]], "V3"),
    ],
)
def test_the_first_on_the_path_counts(directories: list[list[str]], found: str, tmp_path: Path) -> None:
    places = [install(tmp_path / str(number), *parts) for number, parts in enumerate(directories)]
    assert ask(*places) == (found, "")


@pytest.mark.parametrize(
    ("parts", "said", "remedy"),
    [
        (["core"], "only sagemaker-core is installed", "pip install 'sagemaker>=3.21'"),
        (
            ["core", "train", "pytorch"],
            "V2 and of V3, which break each other",
            "pip uninstall sagemaker sagemaker-core",
        ),
        ([], "No SageMaker Python SDK is installed", "pip install 'smddp[sagemaker]'"),
    ],
)
def test_a_broken_installation_is_named_with_what_mends_it(
    parts: list[str], said: str, remedy: str, tmp_path: Path
) -> None:
    output, error = ask(install(tmp_path / "packages", *parts))
    assert output == ""
    assert error.startswith("estimators.errors.EstimatorError: ")
    assert said in error
    assert remedy in error
