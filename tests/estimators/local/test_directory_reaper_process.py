import os
import signal
import subprocess
import sys

from estimators.local.directory_reaper_process import DirectoryReaperProcess


def test_the_directory_goes_with_the_last_who_has_the_lifeline(tmp_path):
    directory, other = tmp_path / "directory", tmp_path / "socket"
    reaper = DirectoryReaperProcess(directory)
    directory.mkdir()
    (directory / "file").touch()
    other.touch()
    reaper.lifeline.also_remove(other)
    reaper.lifeline.also_remove(tmp_path / "never made")
    keeper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[reaper.lifeline.fileno()])
    reaper.lifeline.close()
    assert not reaper.wait(0.2)
    assert {path.name for path in tmp_path.iterdir()} == {"directory", "socket"}
    keeper.kill()
    keeper.communicate()
    assert reaper.wait(10)
    assert list(tmp_path.iterdir()) == []


def test_programs_that_are_not_handed_the_lifeline_do_not_have_it(tmp_path):
    reaper = DirectoryReaperProcess(tmp_path / "directory")
    descriptor = reaper.lifeline.fileno()
    program = f"import os; os.fstat({descriptor})"
    assert subprocess.run([sys.executable, "-c", program], check=False, close_fds=False, capture_output=True).returncode
    assert not os.get_inheritable(descriptor)
    reaper.lifeline.close()
    assert reaper.wait(10)


def test_a_reaper_that_was_killed_hinders_nobody(tmp_path):
    reaper = DirectoryReaperProcess(tmp_path / "directory")
    os.kill(reaper.pid, signal.SIGKILL)
    assert reaper.wait(10)
    reaper.lifeline.also_remove(tmp_path / "socket")
    reaper.lifeline.close()
