"""Ctrl-C, which a terminal sends to the whole process group, ends each command by one line and with code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ASLEEP = "import time\nprint('asleep', flush=True)\ntime.sleep(60)\n"


def interrupted(*command: str, cwd: Path) -> tuple[int, str]:
    """Start a program, send SIGINT to its process group once it says that it sleeps; return its code and output."""
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        said = ""
        for line in program.stdout:
            said += line
            if "asleep" in line:
                os.killpg(program.pid, signal.SIGINT)
    return program.returncode, said


def test_a_plan_says_that_nothing_was_sent(tmp_path: Path) -> None:
    (tmp_path / "submit.py").write_text(ASLEEP)
    code, said = interrupted("-m", "smddp.cli", "plan", "submit.py", cwd=tmp_path)
    assert (code, said.splitlines()) == (130, ["asleep", "smddp plan: interrupted, and nothing was sent"])


@pytest.mark.parametrize("module", ["smddp.cli.app", "smddp.checkpoint.stores.opening"], ids=["importing", "working"])
def test_a_command_is_named_if_it_is_known(module: str, tmp_path: Path) -> None:
    """The program sleeps while it imports a module: before or after its command is known."""
    finder = f"""
import sys, time
class Sleeper:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            print("asleep", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Sleeper())
from smddp.cli import main
main()
"""
    code, said = interrupted("-c", finder, "checkpoints", "ls", str(tmp_path), cwd=tmp_path)
    who = "smddp" if module == "smddp.cli.app" else "smddp checkpoints"
    assert (code, said.splitlines()) == (130, ["asleep", f"{who}: interrupted"])


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    program = """
import errno, os, smddp.cli.app
def full():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.tar.gz")
smddp.cli.app.app = full
from smddp.cli import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    told = "smddp: model.tar.gz: No space left on device. Free some space, or give another place.\n"
    assert (ended.returncode, ended.stderr) == (2, told)


def test_a_removed_working_directory_is_one_line(tmp_path: Path) -> None:
    def remove() -> None:
        (tmp_path / "gone").mkdir()
        os.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()

    program = [sys.executable, "-c", "from smddp.cli import main; main()", "env"]
    ended = subprocess.run(program, preexec_fn=remove, capture_output=True, text=True, check=False)
    told = "smddp: the working directory was removed. Change to another one, such as by cd ~\n"
    assert (ended.returncode, ended.stderr) == (2, told)


def test_run_imports_no_other_package(tmp_path: Path) -> None:
    """Its first line would wait for the import of the packages whose commands are not asked for."""
    program = """
import sys
from smddp.cli import main
try:
    main()
except SystemExit as end:
    print(end.code, *({"estimators", "torch", "boto3"} & set(sys.modules)))
"""
    command = [sys.executable, "-c", program, "run", "absent.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.stdout, "absent.py" in ended.stderr) == ("2\n", True)
