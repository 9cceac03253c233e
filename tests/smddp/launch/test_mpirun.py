from __future__ import annotations

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from smddp.errors import DistributedError
from smddp.failure import HostMemory
from smddp.launch import mpirun
from smddp.launch.mpirun import launch, mpirun_command


def test_the_user_s_options_come_last_and_before_the_program():
    command = mpirun_command(4, ["--verbose"], ["python", "train.py"])
    assert command[:5] == ["mpirun", "--host", "localhost:4", "-np", "4"]
    assert command[-3:] == ["--verbose", "python", "train.py"]


def test_a_missing_mpirun_is_an_error_that_says_what_to_install():
    with pytest.raises(DistributedError, match="install OpenMPI"):
        launch(["no-such-mpirun"], ranks=1, per_host=1)


def test_the_host_of_a_failed_rank_is_found_by_its_number():
    printed = "no such file\n" + "-" * 74 + "\nmpirun detected that\n\n  Process name: [[1,1],2]\n  Exit code:    1\n"
    for ranks, per_host in ((4, 2), (3, 2)):
        reason = mpirun._reason(
            printed, 1, ranks=ranks, per_host=per_host, hosts=["algo-1", "algo-2"], memory=HostMemory()
        )
        assert reason == f"Rank 2 of {ranks} on algo-2 ended with code 1: no such file"


def test_mpiruns_words_behind_a_line_without_an_end_are_no_part_of_the_reason():
    printed = "fatal: no end" + "-" * 74 + "\nPrimary job  terminated normally\n\n  Process name: [[1,1],0]\n"
    reason = mpirun._reason(printed, 2, ranks=2, per_host=2, hosts=["algo-1"], memory=HostMemory())
    assert reason == "Rank 0 of 2 on algo-1 ended with code 2: fatal: no end"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("no such file\n", "One of 2 ranks ended with code 1: no such file"),
        ("Traceback (most recent call last):\nValueError: bad\n", "ValueError: bad (one of 2 ranks)*"),
        ("", "One of 2 ranks ended with code 1, and said no reason."),
    ],
)
def test_a_rank_that_mpirun_did_not_name_is_one_of_all(printed, reason):
    # OpenMPI 4.1.4, when both ranks ended at once.
    banner = "-" * 74 + "\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code.\n"
    told = mpirun._reason(f"{printed}{banner}{printed}", 1, ranks=2, per_host=2, hosts=["algo-1"], memory=HostMemory())
    assert fnmatch.fnmatch(told, reason), told


def test_an_mpirun_that_ended_for_a_reason_of_its_own_blames_no_rank():
    printed = "-" * 74 + "\nA call to mkdir was unable to create the desired directory:\n"
    assert mpirun._reason(printed, 1, ranks=2, per_host=2, hosts=["algo-1"], memory=HostMemory()) == ""


def test_no_option_of_a_script_is_taken_for_an_abbreviation(monkeypatch):
    started = []
    monkeypatch.setattr(mpirun, "launch", lambda command, **_: started.append(command) or 0)
    assert mpirun.main(["--processes", "2", "train.py", "--h", "a", "--option", "b", "--p", "1", "--i", "2"]) == 0
    assert started[0][-9:] == ["train.py", "--h", "a", "--option", "b", "--p", "1", "--i", "2"]
    assert started[0][:5] == ["mpirun", "--host", "localhost:2", "-np", "2"]


@pytest.mark.mpi
class TestRanks:
    def test_a_line_of_a_rank_stays_whole_while_another_rank_prints(self, script, tmp_path):
        """Rank 1 prints between the two parts of rank 0's line, which unbuffered Python would write one by one."""
        text = f"""
import os, pathlib, time
first, second = (pathlib.Path({str(tmp_path)!r}, name) for name in ("first", "second"))

class Late:
    def __str__(self):
        first.touch()
        while not second.exists():
            time.sleep(0.01)
        time.sleep(0.2)  # mpirun copies the other line
        return "of rank 0"

while rank == 1 and not first.exists():
    time.sleep(0.01)
time.sleep(0.2 * rank)  # mpirun would copy the first part
print("loss=0.25", Late() if rank == 0 else "of rank 1", flush=True)
second.touch()
"""
        command = [sys.executable, "-m", "smddp.launch.mpirun", "--processes", "2", script(text)]
        environ = {**os.environ, "PYTHONUNBUFFERED": "1"}  # as in a container
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
        assert sorted(done.stdout.splitlines()) == ["loss=0.25 of rank 0", "loss=0.25 of rank 1"], done.stderr

    def test_no_ssh_is_needed(self, tmp_path, script):
        for program in ("mpirun", "orted", "sh"):
            (tmp_path / program).symlink_to(shutil.which(program))
        command = [sys.executable, "-m", "smddp.launch.mpirun", "--processes", "2", script("print('here')")]
        done = subprocess.run(
            command, env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout.count("here")) == (0, 2), done.stderr

    def test_a_stop_reaches_the_ranks_which_end_in_their_own_time(self, start, script):
        path = script("say('up'); wait(); time.sleep(1.5); say('saved'); sys.exit(75)")
        process = start("-m", "smddp.launch.mpirun", "--processes", "2", path)
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "saved\nsaved\n"
        assert process.wait(timeout=20) == 75

    def test_a_stop_spares_ranks_that_do_not_hear_it_yet(self, start, tmp_path):
        text = "import signal, sys, time\nsys.stdout.write('up\\n')\nsys.stdout.flush()\ntime.sleep(0.5)  # imports\n"
        text += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\nwhile True: time.sleep(0.01)"
        (tmp_path / "train.py").write_text(text)
        process = start("-m", "smddp.launch.mpirun", "--processes", "2", tmp_path / "train.py")
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 75

    def test_sigusr1_reaches_the_ranks_that_know_it_and_kills_nobody(self, start, script):
        # By os.write: the signal may come while the rank still flushes "up", and a stream refuses to be entered again.
        known = "if rank: signal.signal(signal.SIGUSR1, lambda *_: (os.write(1, b'told\\n'), sys.exit(75)))\n"
        path = script(f"{known}say('up'); time.sleep(60 if rank else 3)")
        process = start("-m", "smddp.launch.mpirun", "--processes", "2", path)
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "told\n"
        assert process.wait(timeout=30) == 75

    def test_a_killed_rank_ends_the_others_and_is_the_reason(self, start, script, tmp_path, monkeypatch):
        monkeypatch.setenv("SM_OUTPUT_DIR", str(tmp_path))
        path = script("if rank == 1: os.kill(os.getpid(), 9)\nwait(); sys.exit(5)")
        process = start("-m", "smddp.launch.mpirun", "--processes", "2", path)
        _, log = process.communicate(timeout=30)
        assert process.returncode == 137
        assert "exited on signal 9" in log
        assert re.match(r"Rank 1 of 2 on \S+ was killed by SIGKILL", (tmp_path / "failure").read_text())

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (
                "if rank == 1: raise ValueError('bad\\nin line 3')",
                "ValueError: bad\nin line 3 (rank 1 of 2 on algo-1)\nTrace",
            ),
            ("if rank == 1: sys.exit('no such file')", "Rank 1 of 2 on algo-1 ended with code 1: no such file"),
            (
                "if rank == 1: os.write(2, b'terminate called recursively\\n'); os.abort()",
                "Rank 1 of 2 on * was killed by SIGABRT: term",
            ),
            ("raise ValueError('bad')", "ValueError: bad (*ank ? of 2 on algo-1)\nTrace"),
        ],
        ids=["one", "a message", "an abort", "all"],
    )
    def test_the_reason_is_what_the_rank_has_printed(self, start, script, tmp_path, monkeypatch, text, reason):
        monkeypatch.setenv("SM_OUTPUT_DIR", str(tmp_path))
        monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")
        process = start("-m", "smddp.launch.mpirun", "--processes", "2", script(f"{text}\nwait()"))
        _, log = process.communicate(timeout=30)
        assert (tmp_path / "failure").exists(), log
        if "Process name" not in log and "exited on signal" not in log:  # OpenMPI 4 does not always name the rank
            reason = re.sub(r"(?i)(\*a|ra)nk . of 2 on [^ )]+", "*ne of 2 ranks", reason)
        assert fnmatch.fnmatch((tmp_path / "failure").read_text(), f"{reason}*"), log

    def test_options_and_arguments_reach_mpirun_and_the_script(self, start, script):
        path = script("print(sys.argv[1:], os.environ['NAME'])")
        options = ("--option=-x", "--option=NAME=1")
        process = start("-m", "smddp.launch.mpirun", "--processes", "1", *options, path, "--lr", "0.1")
        assert process.stdout.read() == "['--lr', '0.1'] 1\n", process.stderr.read()
