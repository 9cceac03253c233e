"""A container's first process, above programs that behave as the toolkits and launchers do, and above the real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.smddp.container.conftest import LEAVES_AN_ORPHAN

RANK = """
import os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
sys.stdout.write("ready\\n")  # in one piece: two ranks write at once
while not stop:
    time.sleep(0.01)
time.sleep(0.3)
sys.stdout.write("saved\\n")
if "silent" not in sys.argv:
    from smddp.process.exit_codes import write_exit_code
    write_exit_code(75, os.environ)
sys.exit(75)
"""

TOOLKIT = """
import os, signal, subprocess, sys
code = subprocess.call([sys.executable, *sys.argv[1:]], env={**os.environ, "SM_CURRENT_HOST": "algo-1"})
output = os.path.join(os.environ["SAGEMAKER_BASE_DIR"], "output")
os.makedirs(output, exist_ok=True)
open(os.path.join(output, "failure"), "w").write(f"ExecuteUserScriptError: ExitCode {code}")
sys.exit(1)
"""

LAUNCHER = """
import os, signal, subprocess, sys, time
def kill(*_):
    for rank in ranks: rank.kill()
    sys.exit(1)
signal.signal(signal.SIGTERM, kill)
sys.stdout.write("launching\\n")
time.sleep(float(os.environ.get("LATE", 0)))
environ = {**os.environ, "TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "0"}
ranks = [
    subprocess.Popen([sys.executable, *sys.argv[1:]], env={**environ, "RANK": str(rank)}, start_new_session=True)
    for rank in range(2)
]
sys.exit(max(rank.wait() for rank in ranks) and 1)
"""


IMPATIENT = (
    "-c",
    "import smddp.container.init as init, sys; init.PATIENCE_SECONDS = 0.5; sys.exit(init.main(sys.argv[1:]))",
)


class Container:
    """Process numbers of its own, with our program as their first, and programs in a directory of the test's own."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.started: list[subprocess.Popen[str]] = []

    def program(self, name: str, text: str) -> str:
        path = self.base / name
        path.write_text(text)
        return str(path)

    def start(
        self, *command: str, words: tuple[str, ...] = ("-m", "smddp.container.init"), **environ: str
    ) -> subprocess.Popen[str]:
        isolate = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
        process = subprocess.Popen(
            [*isolate, sys.executable, *words, *command],
            env={**os.environ, "PYTHONUNBUFFERED": "1", "SAGEMAKER_BASE_DIR": str(self.base), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def stop(self, process: subprocess.Popen[str], signum: signal.Signals = signal.SIGTERM) -> None:
        [first] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(first), signum)

    @property
    def failure(self) -> Path:
        return self.base / "output" / "failure"


pytestmark = pytest.mark.namespaces


@pytest.fixture
def container(tmp_path):
    container = Container(tmp_path)
    yield container
    for process in container.started:
        process.kill()
        process.communicate()


def read(process, *lines):
    assert [process.stdout.readline().strip() for _ in lines] == list(lines)


def check_that_a_stop_saves(container, process, ranks=1):
    read(process, *["ready"] * ranks)
    container.stop(process)
    read(process, *["saved"] * ranks)
    assert process.wait(timeout=20) == 75


def test_a_stop_reaches_the_ranks_and_neither_launcher_nor_toolkit(container):
    rank, launcher = container.program("rank.py", RANK), container.program("torchrun", LAUNCHER)
    first = container.start(sys.executable, container.program("toolkit.py", TOOLKIT), launcher, rank)
    read(first, "launching", "ready", "ready")
    container.stop(first)
    read(first, "saved", "saved")
    assert first.wait(timeout=20) == 75
    assert not container.failure.exists()


def test_without_a_word_of_the_ranks_the_program_s_own_code_and_report_stand(container):
    rank, launcher = container.program("rank.py", RANK), container.program("torchrun", LAUNCHER)
    first = container.start(sys.executable, container.program("toolkit.py", TOOLKIT), launcher, rank, "silent")
    read(first, "launching", "ready", "ready")
    container.stop(first)
    read(first, "saved", "saved")
    assert first.wait(timeout=20) == 1
    assert container.failure.read_text() == "ExecuteUserScriptError: ExitCode 1"


@pytest.mark.slow
def test_a_stop_before_the_ranks_are_there_reaches_them_once_they_can_hear_it(container):
    rank = container.program("rank.py", "import time; time.sleep(1)  # as the import of torch does\n" + RANK)
    launcher = container.program("torchrun", LAUNCHER)
    first = container.start(sys.executable, container.program("toolkit.py", TOOLKIT), launcher, rank, LATE="1")
    read(first, "launching")
    container.stop(first)
    assert first.wait(timeout=20) == 75, first.stderr.read()
    assert first.stderr.read().count("SIGTERM: telling process") == 2


def test_ranks_that_never_learn_to_hear_are_told_in_the_end(container):
    rank, launcher = (
        container.program("rank.py", "import sys, time; sys.stdout.write('up\\n'); time.sleep(60)"),
        container.program("torchrun", LAUNCHER),
    )
    toolkit = container.program("toolkit.py", TOOLKIT)
    first = container.start(sys.executable, toolkit, launcher, rank, words=IMPATIENT)
    read(first, "launching", "up", "up")
    container.stop(first)
    assert first.wait(timeout=20) == 1
    assert first.stderr.read().count("SIGTERM: telling process") == 2


def test_a_script_that_names_itself_a_rank_is_told_and_not_what_it_runs(container):
    rank = RANK.replace("stop = []", "import subprocess; os.environ['RANK'] = '0'; stop = []")
    rank = rank.replace("sys.stdout.write", "helper = subprocess.Popen(['sleep', '60']); sys.stdout.write", 1)
    rank = rank.replace("write_exit_code(75", "write_exit_code(75 if helper.poll() is None else 1") + "\n"
    first = container.start(
        sys.executable, container.program("toolkit.py", TOOLKIT), container.program("rank.py", rank)
    )
    check_that_a_stop_saves(container, first)


def test_what_a_rank_leaves_behind_is_no_rank(container):
    rank = RANK.replace("stop = []", "import subprocess; subprocess.Popen(['sleep', '2']); stop = []")
    rank, launcher = container.program("rank.py", rank), container.program("torchrun", LAUNCHER)
    toolkit = container.program("toolkit.py", TOOLKIT.replace("output =", "import time; time.sleep(1)\noutput ="))
    first = container.start(sys.executable, toolkit, launcher, rank, words=IMPATIENT)
    read(first, "launching", "ready", "ready")
    container.stop(first)
    read(first, "saved", "saved")
    assert first.wait(timeout=20) == 75
    assert first.stderr.read().count("SIGTERM: telling process") == 2


def test_what_only_reads_a_script_s_output_is_not_told(container):
    rank = container.program("rank.py", RANK.replace("time.sleep(0.3)", "time.sleep(4)"))
    line = f"{sys.executable} {rank} | tee {container.base}/log; exit 1"
    first = container.start("sh", "-c", line, words=("-c", IMPATIENT[1].replace("0.5", "3")))
    check_that_a_stop_saves(container, first)
    assert first.stderr.read().count("SIGTERM: telling process") == 1


def test_a_stop_during_a_shell_s_earlier_step_or_after_it_reaches_the_later_one(container):
    rank = container.program("rank.py", RANK)
    prepare = container.program("prepare.py", "import time; print('preparing', flush=True); time.sleep(0.5)")
    patient = "import smddp.container.init as init, sys; init.STEP_SECONDS = 30; sys.exit(init.main(sys.argv[1:]))"
    between = container.base / "between"
    os.mkfifo(between)
    steps = f"{sys.executable} {prepare}; read line <{between}; {sys.executable} {rank}; exit 1"
    first = container.start("sh", "-c", steps, words=("-c", patient))
    read(first, "preparing")
    container.stop(first)
    with between.open("w") as line:  # which the shell reads alone
        time.sleep(0.3)
        line.write("go on\n")
    read(first, "ready", "saved")
    assert first.wait(timeout=20) == 75


@pytest.mark.parametrize("code", [0, 3])
def test_without_a_stop_the_program_s_own_end_stands(container, code):
    resumable = "import os; from smddp.process.exit_codes import write_exit_code; write_exit_code(75, os.environ)"
    toolkit = TOOLKIT.replace("sys.exit(1)", f"sys.exit({code})")
    program = container.program("rank.py", resumable)
    first = container.start(sys.executable, container.program("toolkit.py", toolkit), program)
    assert first.wait(timeout=20) == code
    assert container.failure.exists()


def test_a_program_that_empties_the_temporary_directory_keeps_its_own_end(container):
    (container.base / "tmp").mkdir()
    rank = RANK.replace("sys.exit(75)", "import shutil; shutil.rmtree(os.environ['TMPDIR']); sys.exit(4)")
    first = container.start(sys.executable, container.program("rank.py", rank), TMPDIR=str(container.base / "tmp"))
    read(first, "ready")
    container.stop(first)
    assert first.wait(timeout=20) == 4
    assert "there is no program" not in first.stderr.read()


def test_without_a_place_for_words_the_program_runs(container):
    nowhere = "import smddp.process.exit_codes as endings; endings._PLACES = ()\n"
    nowhere += "import smddp.container.init as init, sys; sys.exit(init.main(sys.argv[1:]))"
    first = container.start(sys.executable, "-c", "raise SystemExit(7)", words=("-c", nowhere), TMPDIR="/nowhere")
    assert first.wait(timeout=20) == 7
    assert "no directory can be made in TMPDIR, /tmp or /dev/shm" in first.stderr.read()


@pytest.mark.parametrize(
    "way", ["[sys.executable, *sys.argv[1:]]", "['sh', '-c', ' '.join([sys.executable, *sys.argv[1:]]) + '; exit $?']"]
)
def test_a_script_without_a_launcher_is_told_itself_and_not_the_shell_that_runs_it(container, way):
    toolkit = TOOLKIT.replace("[sys.executable, *sys.argv[1:]]", way)
    first = container.start(
        sys.executable, container.program("toolkit.py", toolkit), container.program("rank.py", RANK)
    )
    check_that_a_stop_saves(container, first)


def test_a_stop_before_the_job_began_ends_the_program_and_leaves_no_report(container):
    toolkit = container.program("toolkit.py", "import time; print('installing'); time.sleep(60)")
    first = container.start(sys.executable, toolkit)
    read(first, "installing")
    container.stop(first)
    assert first.wait(timeout=20) == 143
    assert not container.failure.exists()


def test_a_launcher_whose_ranks_never_come_ends_with_the_program(container, tmp_path):
    launcher = container.program("torchrun", LAUNCHER)
    toolkit = container.program("toolkit.py", TOOLKIT)
    first = container.start(sys.executable, toolkit, launcher, "x", LATE="60", words=IMPATIENT)
    read(first, "launching")
    container.stop(first)
    assert first.wait(timeout=20) == 143


def test_a_toolkit_that_waits_on_after_its_ranks_ended_resumable_is_ended(container):
    toolkit = TOOLKIT.replace("output =", "import time; time.sleep(300)\noutput =")
    hurry = "import smddp.container.init as init, sys; init.FAREWELL_SECONDS = 0.5; sys.exit(init.main(sys.argv[1:]))"
    rank = container.program("rank.py", RANK)
    first = container.start(sys.executable, container.program("toolkit.py", toolkit), rank, words=("-c", hurry))
    check_that_a_stop_saves(container, first)


def test_a_rank_that_outlives_its_launchers_is_waited_for(container):
    told = "open(sys.argv[0] + '.told', 'w').close(); time.sleep(1.5)"
    rank = container.program("rank.py", RANK.replace("time.sleep(0.3)", told))
    toolkit = TOOLKIT.replace("subprocess.call(", "subprocess.Popen(").replace(
        "os.environ, ", "os.environ, 'TORCHELASTIC_RUN_ID': 'job', 'RANK': '0', "
    )
    toolkit = toolkit.replace(
        "output =", "import time\nwhile not os.path.exists(sys.argv[1] + '.told'): time.sleep(0.01)\noutput ="
    )
    first = container.start(sys.executable, container.program("toolkit.py", toolkit), rank)
    check_that_a_stop_saves(container, first)


def test_orphans_are_reaped_and_the_program_s_end_is_the_end(container):
    first = container.start(sys.executable, "-c", f"{LEAVES_AN_ORPHAN}raise SystemExit(7)")
    assert first.wait(timeout=60) == 7
    assert first.stdout.read() == "False\n", first.stderr.read()


def test_what_the_program_leaves_behind_is_asked_to_end_and_told(container):
    left = "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('asked'), sys.exit()))\n"
    left += "if os.fork(): os._exit(7)\nwhile True: time.sleep(0.01)"
    first = container.start(sys.executable, "-c", left)
    assert first.wait(timeout=20) == 7
    assert first.stdout.read() == "asked\n"
    assert "smddp.container.init: Left behind by the programs that ran here: " in first.stderr.read()


def test_a_program_that_is_not_there_is_named(container):
    first = container.start("no-such-program")
    assert first.wait(timeout=20) == 127
    assert "there is no program no-such-program" in first.stderr.read()


def test_a_program_that_can_t_be_started_is_named(container):
    first = container.start(container.program("plain", "no program"))
    assert first.wait(timeout=20) == 126
    assert f"the program {container.base}/plain can't be started" in first.stderr.read()


def test_a_program_ends_for_a_first_process_that_inherited_deaf_ears(container):
    ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    ignoring += "os.execv(sys.executable, [sys.executable, '-m', 'smddp.container.init', *sys.argv[1:]])"
    first = container.start(sys.executable, "-c", "raise SystemExit(7)", words=("-c", ignoring))
    assert first.wait(timeout=20) == 7


def test_signals_that_stop_nothing_are_the_program_s_own(container):
    code = "import signal, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(8)); print('ready')\n"
    first = container.start(sys.executable, "-c", code + "while True: time.sleep(0.1)")
    read(first, "ready")
    container.stop(first, signal.SIGUSR1)
    assert first.wait(timeout=20) == 8


def test_the_program_is_started_as_anywhere_else(container):
    code = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGTERM).name)"
    first = container.start(sys.executable, "-c", code)
    assert first.stdout.read() == "set() SIG_DFL\n"


def test_nothing_heavy_is_loaded(container):
    code = "import sys, smddp.container.init; print({'torch', 'logging', 'subprocess', 'pathlib'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


@pytest.mark.toolkit
@pytest.mark.parametrize("distribution", ["plain", "torch_distributed"])
@pytest.mark.slow
def test_with_aws_s_own_toolkit_a_stop_reaches_every_rank_and_is_no_failure(container, distribution):
    hyperparameters = {"sagemaker_program": "train.py", "sagemaker_submit_directory": str(container.base / "code")}
    if distribution != "plain":
        hyperparameters |= {f"sagemaker_{distribution}_enabled": True, "sagemaker_mpi_num_of_processes_per_host": 2}
    config = container.base / "input" / "config"
    config.mkdir(parents=True)
    encoded = {name: json.dumps(value) for name, value in hyperparameters.items()}
    (config / "hyperparameters.json").write_text(json.dumps(encoded))
    resources = {"current_host": "localhost", "hosts": ["localhost"], "network_interface_name": "lo"}
    (config / "resourceconfig.json").write_text(json.dumps(resources))
    (config / "inputdataconfig.json").write_text("{}")
    (container.base / "code").mkdir()
    (container.base / "output").mkdir()  # as the platform does: without it the toolkit fails to report and exits with 0
    container.program("code/train.py", RANK)
    module = {"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main", "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    first = container.start("train", PATH=path, **module)
    ranks = 1 if distribution == "plain" else 2
    said = (line.strip() for line in first.stdout)
    assert [next(line for line in said if line == "ready") for _ in range(ranks)]
    container.stop(first)
    assert [line for line in said if line == "saved"] == ["saved"] * ranks
    assert first.wait(timeout=60) == 75, first.stderr.read()
    assert not container.failure.exists()


@pytest.mark.parametrize(("toolkit", "warned"), [({"SAGEMAKER_TRAINING_MODULE": "its:main"}, True), ({}, False)])
def test_restarts_that_nobody_will_do_are_said_to_be_none(toolkit: dict[str, str], warned: bool) -> None:
    others = {name: value for name, value in os.environ.items() if name != "SAGEMAKER_TRAINING_MODULE"}
    done = subprocess.run(
        [sys.executable, "-m", "smddp.container.init", "true"],
        env={**others, **toolkit, "SMDDP_MAX_RESTARTS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("SMDDP_MAX_RESTARTS does nothing with AWS's toolkit" in done.stderr) is warned
