"""``smddp migrate``: a diff that applies, a file that changes as a whole, and an exit code that says how it went."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from smddp.cli.app import app
from tests.estimators.migrate.scripts import V2, V2_AFTER

LEFT = "from sagemaker.pytorch import PyTorch\ne = PyTorch('t.py')\ne.fit()\ne.deploy(1)\n"

Migrate = Callable[..., Result]


@pytest.fixture
def migrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Migrate:
    """Calls ``smddp migrate`` on a submit script of such a text."""
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes, *options: str) -> Result:
        Path("submit.py").write_bytes(text if isinstance(text, bytes) else text.encode())
        return CliRunner().invoke(app, ["migrate", "submit.py", *options])

    return run


@pytest.mark.parametrize(
    "text", [V2, V2.rstrip("\n"), V2.replace("# sends it", "# schickt es überall\f"), V2.replace("\n", "\r\n")]
)
def test_the_diff_makes_the_migrated_script(migrate: Migrate, text: str) -> None:
    shown = migrate(text)
    assert (shown.exit_code, Path("submit.py").read_bytes()) == (0, text.encode())
    assert "submit.py:11: note: the SDK's PyTorch turns Debugger's hook" in shown.stderr
    subprocess.run(["git", "apply", "-p0"], input=shown.stdout_bytes, check=True)
    applied = Path("submit.py").read_bytes()
    assert migrate(text, "--write").exit_code == 0
    assert Path("submit.py").read_bytes() == applied != text.encode()


def test_the_file_changes_and_stays_beside_it_as_it_was(migrate: Migrate) -> None:
    Path("submit.py").touch(mode=0o750)
    written = migrate(V2, "--write")
    assert (written.exit_code, written.stdout) == (0, "")
    assert Path("submit.py").read_text() == V2_AFTER
    assert Path("submit.py.orig").read_text() == V2
    assert [path.stat().st_mode & 0o777 for path in sorted(Path().iterdir())] == [0o750, 0o750]
    again = migrate(V2_AFTER, "--write")
    assert (again.exit_code, again.stderr) == (0, "submit.py: nothing to do, its jobs are the Estimator's.\n")
    refused = migrate(V2, "--write")
    assert refused.exit_code == 2
    assert "submit.py.orig: File exists. Nothing was changed" in refused.stderr
    assert Path("submit.py").read_text() == V2


def test_a_link_stays_one(migrate: Migrate) -> None:
    Path("real").mkdir()
    Path("real/job.py").touch()
    Path("submit.py").symlink_to("real/job.py")
    assert migrate(V2, "--write").exit_code == 0
    assert Path("submit.py").is_symlink()
    assert Path("real/job.py").read_text() == V2_AFTER


def test_no_file_but_the_script_is_written_to(migrate: Migrate) -> None:
    Path("other").write_text("mine")
    Path(".submit.py.migrated").symlink_to("other")
    assert migrate(V2, "--write").exit_code == 0
    assert (Path("other").read_text(), Path("submit.py").read_text()) == ("mine", V2_AFTER)
    assert not Path("submit.py").is_symlink()


def test_what_is_left_to_do_is_said_and_ends_with_1(migrate: Migrate) -> None:
    for options in ((), ("--write",)):
        shown = migrate(LEFT, *options)
        assert shown.exit_code == 1
        assert shown.stderr.startswith("submit.py:4: to do: e.deploy: the Estimator has no deploy. Deploy the model")
        assert Path("submit.py").read_text() == LEFT
    assert not Path("submit.py.orig").exists()


def test_what_can_be_changed_of_a_job_with_something_to_do_is_shown(migrate: Migrate) -> None:
    shown = migrate(LEFT)
    changed = [line for line in shown.stdout.splitlines()[2:] if line[0] in "+-"]
    assert changed == [
        "-from sagemaker.pytorch import PyTorch",
        "-e = PyTorch('t.py')",
        "+from estimators import Estimator",
        "+e = Estimator('t.py')",
    ]
    assert "--write leaves that job as it is" in shown.stderr


def test_what_is_no_submit_script_ends_with_2(migrate: Migrate) -> None:
    for text, message in (
        ("x = (", "line 1: '(' was never closed. Correct it first."),
        ("x = 1\0\n", "source code string cannot contain null bytes. Correct it first."),
        (f"x = {'-' * 2000}1\n", "its expressions are nested too deeply to be read."),
        (f"x = {'-' * 100_000}1\n", "its expressions are nested too deeply to be read."),
        (f"x = {'(' * 5000}1{')' * 5000}\n", "its expressions are nested too deeply to be read."),
        ("", "no call of sagemaker."),
    ):
        refused = migrate(text)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"smddp migrate: submit.py: {message}" in refused.stderr
    for path, message in (
        ("nothing.py", "nothing.py can't be read: No such file or directory."),
        (".", ". can't be read: Is a directory."),
        ("a.ipynb", "a.ipynb is a notebook. Make a script of it first"),
    ):
        refused = CliRunner().invoke(app, ["migrate", path])
        assert refused.exit_code == 2
        assert message in refused.stderr


def test_without_libcst_it_says_what_to_install(migrate: Migrate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)
    refused = migrate(V2)
    assert refused.exit_code == 2
    assert "pip install 'smddp[migrate]'" in refused.stderr


def test_the_page_shows_what_becomes_of_its_scripts(migrate: Migrate) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "migrate.md").read_text()
    v2, v3 = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shown = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    diff, notes, after = shown
    assert migrate(v2).stdout.replace("submit.py", "submit_v2.py") == diff
    told = migrate(v2).stderr.replace("submit.py", "submit_v2.py")
    assert all(line.removesuffix(" …") in told for line in notes.splitlines())
    migrate(v3, "--write")
    assert Path("submit.py").read_text() == "# submit_v3.py\n" + after
