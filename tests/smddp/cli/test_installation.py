"""An editable installation that is older than its clone is told by the doctor, and where a command is missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smddp._version import __version__
from smddp.cli.app import app
from smddp.cli.doctor import examine
from smddp.cli.installation import outdated
from smddp.errors import SmddpError

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="only versions are compared on Python 3.10")

PROJECT = """
[project]
dependencies = ["boto3>=1.36", "torch>=2.4,<9"]
[project.scripts]
smddp = "smddp.cli:main"
[project.optional-dependencies]
local = ["smddp[sagemaker]"]
sagemaker = ["sagemaker>=2.257,<3; python_version >= '3.9'"]
[project.entry-points."smddp.commands"]
plan = "estimators.submit_script.command:plan"
"""
METADATA = f"""Metadata-Version: 2.4
Name: smddp
Version: {__version__}
Requires-Dist: boto3>=1.36
Requires-Dist: torch<9,>=2.4
Requires-Dist: sagemaker<3,>=2.257; (python_version >= '3.9') and extra == 'local'
Requires-Dist: sagemaker<3,>=2.257; (python_version >= '3.9') and extra == 'sagemaker'
"""
ENTRY_POINTS = """[console_scripts]
smddp = smddp.cli:main
[smddp.commands]
plan = estimators.submit_script.command:plan
"""
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a clone, and what pip records of its installation."""

    def install(*, project: str = PROJECT, metadata: str = METADATA, entry_points: str = ENTRY_POINTS) -> Path:
        clone, record = tmp_path / "my clone", tmp_path / f"smddp-{__version__}.dist-info"
        clone.mkdir()
        record.mkdir()
        (clone / "pyproject.toml").write_text(project)
        (record / "METADATA").write_text(metadata)
        (record / "entry_points.txt").write_text(entry_points)
        (record / "direct_url.json").write_text(json.dumps({"url": clone.as_uri(), "dir_info": {"editable": True}}))
        monkeypatch.syspath_prepend(tmp_path)
        return clone

    return install


def test_an_installation_like_its_clone_is_not_told(install: Install) -> None:
    install()
    assert outdated() is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"metadata": METADATA.replace(__version__, "0.0.1")}, "the version (0.0.1 is installed)"),
        ({"metadata": METADATA.replace("Requires-Dist: boto3>=1.36\n", "")}, "the requirement boto3>=1.36"),
        ({"metadata": METADATA.replace("<3,>=2.257", ">=2")}, "the requirement sagemaker<3,>=2.257"),
        ({"project": PROJECT + 'new = "estimators.new:new"\n'}, "the command new"),
        ({"entry_points": ENTRY_POINTS + "gone = estimators.gone:gone\n"}, "the command gone"),
        ({"entry_points": ENTRY_POINTS.replace("smddp.cli:main", "smddp.main:main")}, "smddp of console_scripts"),
    ],
)
def test_each_difference_is_named(install: Install, changed: dict[str, str], expected: str) -> None:
    clone = install(**changed)
    older = outdated()
    assert older is not None
    assert older.differences == (expected,)
    assert older.remedy == f"pip install -e '{clone}'"


def test_the_doctor_and_an_unknown_command_say_what_to_do(install: Install, tmp_path: Path) -> None:
    install(project=PROJECT + 'new = "estimators.new:new"\n')
    (told,) = [each for each in examine(tmp_path) if each.name == "installation"]
    assert (told.state, told.remedy) == ("missing", f"pip install -e '{tmp_path / 'my clone'}'")
    shown = CliRunner().invoke(app, ["new"], env={"COLUMNS": "400"})
    assert shown.exit_code == 2
    assert "No such command 'new'" in shown.output
    assert "these differ: the command new. Do: pip install -e" in shown.output


def test_a_command_whose_module_was_removed_says_what_to_do(install: Install) -> None:
    install(entry_points=ENTRY_POINTS + "gone = estimators.gone:gone\n")
    shown = CliRunner().invoke(app, ["gone"])
    assert isinstance(shown.exception, SmddpError)
    assert str(shown.exception).startswith("No module named 'estimators.gone': pip installed an older state of ")
