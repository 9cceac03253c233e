"""The program as a whole: what a job's files and signals end in. Real processes; torch only where ranks are joined."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smddp.process.process_tree import started
from tests.ports import free_port
from tests.smddp.container.conftest import LEAVES_AN_ORPHAN

STOPPABLE = """
import os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
print("ready", flush=True)
while not stop:
    time.sleep(0.01)
time.sleep(0.2)
open("saved-" + os.environ.get("RANK", "0"), "w").close()
sys.exit(75)
"""


def ready(process: subprocess.Popen[str], times: int = 1) -> None:
    assert process.stdout is not None
    for _ in range(times):
        assert process.stdout.readline().strip() == "ready"


def test_runs_the_entry_point_with_its_hyperparameters_and_reports_success(opt_ml):
    opt_ml.code("train.py", "import sys, os; print(sys.argv[1:], os.environ['SM_HP_LR'], os.getcwd())")
    opt_ml.hyperparameters(sagemaker_program="train.py", lr=0.1, flag=True, name="x y", none=None)
    done = opt_ml.train()
    assert done.returncode == 0
    arguments = ["--flag", "True", "--lr", "0.1", "--name", "x y", "--none", ""]
    assert done.stdout == f"{arguments} 0.1 {opt_ml.base / 'code'}\n"
    assert opt_ml.succeeded
    assert opt_ml.failure is None


def test_loads_neither_torch_nor_boto3_for_a_plain_job(opt_ml):
    opt_ml.code("train.py", "pass").hyperparameters(sagemaker_program="train.py")
    code = "import sys, runpy; sys.argv = ['x']\n"
    code += "try: runpy.run_module('smddp.container', run_name='__main__')\n"
    code += "except SystemExit as end: assert not end.code\n"
    code += "print({'torch', 'boto3', 'numpy', 'packaging', 'tempfile'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=opt_ml.environ(), capture_output=True, text=True)
    assert set(eval(done.stdout)) <= {"tempfile"}, done.stderr


def test_keeps_the_exit_code_and_writes_the_uncaught_exception(opt_ml):
    script = (
        "import sys; print('to stdout'); print('to stderr', file=sys.stderr)\nraise ValueError('no such class: 11')"
    )
    opt_ml.code("train.py", script).hyperparameters(sagemaker_program="train.py")
    done = opt_ml.train()
    assert done.returncode == 1
    assert done.stdout == "to stdout\n"
    assert "to stderr\n" in done.stderr
    assert "ValueError: no such class: 11" in done.stderr
    assert opt_ml.failure is not None
    assert opt_ml.failure.startswith("train.py ended with exit code 1 on algo-1: ValueError: no such class: 11\n")
    assert 'train.py", line 2' in opt_ml.failure
    assert not opt_ml.succeeded


@pytest.mark.parametrize("code", [3, 75])
def test_any_other_exit_code_stays_as_it_is(opt_ml, code):
    opt_ml.code("train.py", f"import sys; sys.exit({code})").hyperparameters(sagemaker_program="train.py")
    assert opt_ml.train().returncode == code
    assert opt_ml.failure == f"train.py ended with exit code {code} on algo-1."


def test_a_rank_s_own_failure_file_wins(opt_ml):
    script = (
        "import os; open(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('the root cause'); raise SystemExit(1)"
    )
    opt_ml.code("train.py", script).hyperparameters(sagemaker_program="train.py")
    (opt_ml.base / "output").mkdir()
    assert opt_ml.train().returncode == 1
    assert opt_ml.failure == "the root cause"


def test_what_an_earlier_attempt_wrote_is_not_this_ones_reason(opt_ml):
    opt_ml.code("train.py", "raise SystemExit(3)").hyperparameters(sagemaker_program="train.py")
    (opt_ml.base / "output").mkdir()
    (opt_ml.base / "output" / "failure").write_text("of an earlier attempt")
    (opt_ml.base / "output" / "success").touch()
    opt_ml.train()
    assert opt_ml.failure == "train.py ended with exit code 3 on algo-1."
    assert not opt_ml.succeeded


def test_a_process_that_was_killed_ends_as_137_and_says_so(opt_ml):
    opt_ml.code("train.py", "import os; os.kill(os.getpid(), 9)").hyperparameters(sagemaker_program="train.py")
    assert opt_ml.train().returncode == 137
    assert "killed by SIGKILL" in (opt_ml.failure or "")


def test_a_daemon_that_keeps_stderr_open_does_not_hold_the_job(opt_ml):
    opt_ml.code("train.py", "import subprocess; subprocess.Popen(['sleep', '200'], stdout=subprocess.DEVNULL)")
    opt_ml.hyperparameters(sagemaker_program="train.py")
    process = opt_ml.start()
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_reaches_the_script_which_ends_in_its_own_time(opt_ml, signum):
    opt_ml.code("train.py", STOPPABLE.replace("SIGTERM", signum.name)).hyperparameters(sagemaker_program="train.py")
    process = opt_ml.start()
    ready(process)
    process.send_signal(signum)
    assert process.wait(timeout=20) == 75
    assert (opt_ml.base / "code" / "saved-0").exists()
    assert opt_ml.failure is None


def test_sigusr1_reaches_a_script_that_knows_it(opt_ml):
    opt_ml.code("train.py", STOPPABLE.replace("SIGTERM", "SIGUSR1")).hyperparameters(sagemaker_program="train.py")
    process = opt_ml.start()
    ready(process)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=20) == 75


def test_sigusr1_does_nothing_to_a_script_that_does_not_know_it(opt_ml):
    opt_ml.code("train.sh", "echo ready; sleep 1; exit 3").hyperparameters(sagemaker_program="train.sh")
    process = opt_ml.start()
    ready(process)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=20) == 3


def test_a_stop_reaches_what_a_shell_script_runs(opt_ml):
    slow = STOPPABLE.replace("sleep(0.2)", "sleep(1.6)")  # longer than the shell's own output is waited for
    opt_ml.code("inner.py", slow).code("train.sh", f"{sys.executable} inner.py\n")
    opt_ml.hyperparameters(sagemaker_program="train.sh")
    process = opt_ml.start()
    ready(process)
    process.terminate()
    assert process.wait(timeout=20) == 128 + signal.SIGTERM
    assert (opt_ml.base / "code" / "saved-0").exists()


def test_a_shell_script_gets_its_arguments_unharmed(opt_ml):
    opt_ml.code("bin/train.sh", 'printf "<%s>" "$@"; exit 4')
    opt_ml.hyperparameters(sagemaker_program="bin/train.sh", text="a b'c $HOME `id`")
    done = opt_ml.train()
    assert done.stdout == "<--text><a b'c $HOME `id`>\n"
    assert done.returncode == 4


def test_a_stop_before_the_processes_start_ends_at_once(opt_ml):
    opt_ml.code("train.py", "print('ran')").hyperparameters(sagemaker_program="train.py")
    opt_ml.hosts(["127.0.0.1", "algo..2"])
    process = opt_ml.start()
    assert process.stderr is not None
    assert "Waiting for the names of algo..2" in process.stderr.readline()
    process.terminate()
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out, opt_ml.failure) == (143, "", None)


def test_a_missing_entry_point_is_a_failure_that_lists_the_files(opt_ml):
    opt_ml.code("main.py", "").code("lib/model.py", "").hyperparameters(sagemaker_program="train.py")
    assert opt_ml.train().returncode == 1
    assert opt_ml.failure == "There is no entry point train.py in the source bundle, which holds lib/model.py, main.py."


def test_a_log_level_that_is_none_is_a_failure_that_names_it(opt_ml):
    opt_ml.code("train.py", "pass").hyperparameters(sagemaker_program="train.py", sagemaker_container_log_level="loud")
    assert opt_ml.train().returncode == 1
    assert (opt_ml.failure or "").startswith("sagemaker_container_log_level='loud' must be a whole number")


def test_outside_a_container_nothing_is_written(tmp_path):
    environ = {**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path / "ml")}
    command = [sys.executable, "-m", "smddp.container"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert "runs in a SageMaker training container" in done.stderr
    assert not (tmp_path / "ml").exists()


@pytest.mark.namespaces
def test_as_the_first_process_it_reaps_what_the_job_leaves_behind(opt_ml):
    opt_ml.code("train.py", LEAVES_AN_ORPHAN).hyperparameters(sagemaker_program="train.py")
    isolate = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount", "--mount-proc"]
    command = [*isolate, sys.executable, "-m", "smddp.container"]
    done = subprocess.run(command, env=opt_ml.environ(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.mark.slow
def test_two_hosts_of_two_ranks_meet_and_a_stop_on_both_ends_them_resumable(make_opt_ml):
    script = "import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'], flush=True)\n" + STOPPABLE
    processes, port = [], str(free_port())
    for host in ("127.0.0.1", "127.0.0.2"):
        opt_ml = make_opt_ml(host).hosts(["127.0.0.1", "127.0.0.2"], host).code("train.py", script)
        opt_ml.hyperparameters(
            sagemaker_program="train.py",
            sagemaker_torch_distributed_enabled=True,
            sagemaker_mpi_num_of_processes_per_host=2,
        )
        processes.append(opt_ml.start(SMDDP_MASTER_PORT=port))
    ranks = set()
    for process in processes:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(4)]
        assert lines.count("ready") == 2
        ranks |= {line for line in lines if line != "ready"}
    assert ranks == {"0 4", "1 4", "2 4", "3 4"}
    for process in processes:
        process.terminate()
    assert [process.wait(timeout=30) for process in processes] == [75, 75]


OF_TORCHRUN = {
    "sagemaker_program": "train.py",
    "sagemaker_torch_distributed_enabled": True,
    "sagemaker_mpi_num_of_processes_per_host": 2,
}


@pytest.mark.slow
def test_torchruns_agent_and_its_ranks_are_forked_from_one_parent(opt_ml):
    """A rank has what the agent had when that began: all that it needs, if it was forked, too."""
    script = "import os, torch\nimport sys\n"
    script += "print('smddp.launch.agent' in sys.modules, os.environ['OMP_NUM_THREADS'], flush=True)\n"
    done = opt_ml.code("train.py", script).hyperparameters(**OF_TORCHRUN).train(SMDDP_WARM="1")
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert done.stdout.splitlines() == [f"True {threads}"] * 2, done.stderr
    assert f"OMP_NUM_THREADS={threads}: this machine's cores, shared by 2 ranks" in done.stderr
    assert "cold" not in done.stderr


def test_a_stop_does_not_wait_for_the_imports_of_the_launcher(opt_ml, tmp_path):
    package = tmp_path / "site-packages" / "torch"
    package.mkdir(parents=True)
    text = "import pathlib, time\npathlib.Path(__file__).with_name('importing').touch()\ntime.sleep(100)\n"
    (package / "__init__.py").write_text(text)
    path = os.pathsep.join([str(package.parent), str(Path(__file__).parents[3])])
    opt_ml.code("train.py", "import torch\n").hyperparameters(**OF_TORCHRUN)
    process = opt_ml.start(SMDDP_WARM="1", PYTHONPATH=path)
    while not (package / "importing").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    _, log = process.communicate(timeout=60)
    assert process.returncode == 143, log
    assert "SIGTERM came before the job's processes were started" in log
    assert "cold" not in log


@pytest.mark.slow
def test_a_failing_rank_under_torchrun_is_named_by_its_own_exception(opt_ml):
    script = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('bad label 11')\ntime.sleep(60)"
    opt_ml.code("train.py", script)
    opt_ml.hyperparameters(
        sagemaker_program="train.py",
        sagemaker_torch_distributed_enabled=True,
        sagemaker_mpi_num_of_processes_per_host=2,
    )
    done = opt_ml.train()
    assert done.returncode == 1
    assert (opt_ml.failure or "").startswith("ValueError: bad label 11 (rank 1 of 2 on algo-1)\nTraceback")
    assert "Rank 1 ended with code 1" in done.stderr


@pytest.mark.slow
def test_of_two_hosts_both_have_the_traceback_of_the_one_that_failed(make_opt_ml):
    script = "import os, time\nif os.environ['RANK'] == '0': raise ValueError('the data is broken')\ntime.sleep(600)"
    hosts, processes, port = [], [], str(free_port())
    for host in ("127.0.0.1", "127.0.0.2"):
        opt_ml = make_opt_ml(host).hosts(["127.0.0.1", "127.0.0.2"], host).code("train.py", script)
        opt_ml.hyperparameters(sagemaker_program="train.py", sagemaker_torch_distributed_enabled=True)
        hosts.append(opt_ml)
        processes.append(opt_ml.start(SMDDP_MASTER_PORT=port))
    assert [process.wait(timeout=60) for process in processes] == [1, 1]
    for opt_ml in hosts:
        assert (opt_ml.failure or "").startswith("ValueError: the data is broken (rank 0 of 2 on 127.0.0.1)\nTraceback")


LAUNCHERS = [
    pytest.param("sagemaker_mpi_enabled", "OMPI_COMM_WORLD_RANK", marks=pytest.mark.mpi),
    pytest.param("sagemaker_pytorch_ddp_enabled", "RANK", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("launcher", "rank"), LAUNCHERS)
def test_ranks_that_are_shell_scripts_are_stopped_with_all_that_they_run(opt_ml, launcher, rank):
    opt_ml.code("inner.py", STOPPABLE.replace('"RANK"', repr(rank)))
    opt_ml.code("train.sh", f'echo "$@" ${rank}\n{sys.executable} inner.py\n')
    asked = {launcher: True, "sagemaker_mpi_num_of_processes_per_host": 2, "sagemaker_program": "train.sh"}
    process = opt_ml.hyperparameters(text="a b", **asked).start()
    lines = [process.stdout.readline().strip() for _ in range(4)]
    assert sorted(lines) == ["--text a b 0", "--text a b 1", "ready", "ready"]
    process.terminate()
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert [(opt_ml.base / "code" / f"saved-{number}").exists() for number in range(2)] == [True, True]
    assert opt_ml.failure is None


@pytest.mark.parametrize(("launcher", "rank"), LAUNCHERS)
def test_ranks_that_are_a_package_s_module_give_its_exception_as_the_reason(opt_ml, launcher, rank):
    opt_ml.code("setup.py", "from setuptools import setup\nsetup(name='trainer', version='1', packages=['trainer'])")
    opt_ml.code("trainer/__init__.py", "").code("trainer/lib.py", "def fail(): raise ValueError('no such class')")
    begin = f"import os, sys, time\nfrom trainer.lib import fail\nrank = os.environ['{rank}']\n"
    told = "os.write(1, f'{rank} {sys.argv[1:]}\\n'.encode())\n"
    up = f"open({str(opt_ml.base)!r} + f'/up-{{rank}}', 'w').close()\n"
    up += f"while not os.path.exists({str(opt_ml.base)!r} + '/up-0'): time.sleep(0.01)\n"
    opt_ml.code("trainer/main.py", f"{begin}{told}{up}time.sleep(0.5)\nif rank == '1': fail()\ntime.sleep(600)")
    asked = {launcher: True, "sagemaker_mpi_num_of_processes_per_host": 2, "sagemaker_program": "trainer.main"}
    done = opt_ml.hyperparameters(lr=1, **asked).train(PIP_NO_BUILD_ISOLATION="0")
    assert done.returncode == 1, done.stderr
    assert sorted(done.stdout.splitlines()[-2:]) == ["0 ['--lr', '1']", "1 ['--lr', '1']"]
    assert (opt_ml.failure or "").startswith("ValueError: no such class (rank 1 of 2 on algo-1)\nTraceback")


@pytest.mark.mpi
def test_mpi_starts_as_many_ranks_in_all_as_the_job_asks_for(opt_ml):
    opt_ml.code("train.py", "import os; os.write(1, os.environ['OMPI_COMM_WORLD_SIZE'].encode() + b'\\n')")
    asked = {"sagemaker_mpi_num_of_processes_per_host": 4, "sagemaker_mpi_num_processes": 3}
    done = opt_ml.hyperparameters(sagemaker_program="train.py", sagemaker_mpi_enabled=True, **asked).train()
    assert done.stdout.split() == ["3"] * 3, done.stderr


@pytest.mark.parametrize("end", ["", "\\r"])
def test_a_last_line_without_an_end_is_ended_before_the_program_speaks(opt_ml, end):
    opt_ml.code("train.py", f"print('step=1'); print('acc=93', end='{end}')").hyperparameters(
        sagemaker_program="train.py"
    )
    log = subprocess.run(
        [sys.executable, "-m", "smddp.container"],
        env=opt_ml.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    ).stdout.replace(b"\r", b"")
    assert b"\nacc=93\n" in log


def test_hyperparameters_json_is_what_the_script_can_read(opt_ml):
    opt_ml.code("train.py", "import os; print(os.environ['SM_HPS'])")
    opt_ml.hyperparameters(sagemaker_program="train.py", layers=[1, 2], deep={"a": None})
    assert json.loads(opt_ml.train().stdout) == {"layers": [1, 2], "deep": {"a": None}}


def left_behind(opt_ml, **platform):
    """What a job's script leaves: it forks, and only the child goes on."""
    left = "import os, time\nif os.fork(): os._exit(0)\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    opt_ml.code("train.py", left).hyperparameters(sagemaker_program="train.py", **platform)
    done = opt_ml.train()
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Left behind by the programs that ran here: ") == 1, done.stderr
    return [process for process in map(int, done.stdout.split()) if started(process) is not None]


def test_what_a_script_leaves_behind_ends_with_the_job(opt_ml):
    assert left_behind(opt_ml) == []


@pytest.mark.mpi
def test_what_mpirun_s_ranks_leave_behind_ends_with_the_job(opt_ml):
    mpi = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}
    assert left_behind(opt_ml, **mpi) == []


@pytest.mark.mpi
def test_a_daemon_that_emptied_its_environment_does_not_hold_mpirun(opt_ml):
    script = "import os, subprocess\np = subprocess.Popen(['env', '-i', 'sleep', '600'], start_new_session=True)\n"
    opt_ml.code("train.py", f"{script}os.write(1, f'{{p.pid}}\\n'.encode())\nimport time; time.sleep(2)")
    mpi = {"sagemaker_mpi_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}
    opt_ml.hyperparameters(sagemaker_program="train.py", **mpi)
    began = time.monotonic()
    done = opt_ml.train()
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 40
    assert [process for process in map(int, done.stdout.split()) if started(process) is not None] == []


@pytest.mark.namespaces
def test_a_full_disk_is_no_defect_and_does_not_hide_the_scripts_error(opt_ml):
    opt_ml.code("train.py", "open('../output/data', 'w').write('x' * 10**6)")
    opt_ml.hyperparameters(sagemaker_program="train.py")
    (opt_ml.base / "output").mkdir(exist_ok=True)
    small = 'mount -t tmpfs -o size=16k tmpfs "$SAGEMAKER_BASE_DIR/output" && exec "$@"'
    isolate = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", small, "sh"]
    command = [*isolate, sys.executable, "-m", "smddp.container"]
    done = subprocess.run(command, env=opt_ml.environ(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "This is a defect" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "failure can't be written: the disk is full" in last
    assert last.endswith("train.py ended with exit code 1 on algo-1: OSError: [Errno 28] No space left on device")
