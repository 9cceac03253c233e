"""A rank that is killed, and a node that is lost, end all nodes soon, each with the reason in its failure file."""

from __future__ import annotations

import fnmatch
import os
import re
import signal
import time

import pytest

from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("fork_python")

ASLEEP = """
import os, time
import smddp
from smddp.distributed import first_failure

def main(job):
    print(job.cluster.rank, os.getpid(), flush=True)
    time.sleep(600)  # in no collective: contact is not lost by itself

first_failure._HEED_SECONDS = 0.5
smddp.run(main)
"""

WITHOUT_SMDDP = "import os, time; print(os.environ['RANK'], os.getpid(), flush=True); time.sleep(600)"


@pytest.fixture
def two_nodes(start, tmp_path, monkeypatch):
    """Starts a script on two nodes, each with a directory of its own; gives agents and ranks' IDs."""

    def start_two(text, ranks_per_node=2, hear=True):
        (tmp_path / "train.py").write_text(text)
        port = str(free_port())
        words = ["--nnodes", "2", "--nproc-per-node", str(ranks_per_node)]
        words += ["--master-addr", "127.0.0.1", "--master-port", port]
        agents = []
        for node in range(2):
            monkeypatch.setenv("SMDDP_RUN_DIR", str(tmp_path / f"host-{node}"))
            monkeypatch.setenv("SM_CURRENT_HOST", f"algo-{node + 1}") if "smddp.run" not in text else None
            agents.append(start("-m", "smddp.launch.torchrun", *words, "--node-rank", str(node), tmp_path / "train.py"))
        lines = [agent.stdout.readline() for agent in agents for _ in range(ranks_per_node if hear else 0)]
        return agents, dict(map(int, line.split()) for line in lines)

    return start_two


MPI = pytest.mark.mpi

BROKEN = "import os, sys, time; rank = int(os.environ['RANK'])\n"
"""How the scripts begin below, which never heard of smddp: they fail by themselves, in one rank or in all."""

LOST = "raise RuntimeError('[pair.cc:545] Read error: Connection reset by peer')"


def reports(directory):
    return [(directory / f"host-{node}" / "output" / "failure").read_text() for node in range(2)]


@pytest.mark.parametrize("killed", [3, 0])
@pytest.mark.parametrize("text", [ASLEEP, WITHOUT_SMDDP], ids=["smddp.run", "a script alone"])
@pytest.mark.slow
def test_a_killed_rank_ends_all_nodes_and_is_the_reason_on_each(two_nodes, tmp_path, text, killed):
    agents, ranks = two_nodes(text)
    os.kill(ranks[killed], signal.SIGKILL)
    began = time.monotonic()
    logs = [agent.communicate(timeout=60)[1] for agent in agents]
    assert time.monotonic() - began < 30
    assert [agent.returncode for agent in agents] == [137, 137], logs
    assert f"Rank {killed} ended with code 137 (SIGKILL)" in logs[killed // 2]
    for report in reports(tmp_path):
        assert re.match(rf"Rank {killed} of 4 on \S+ was killed by SIGKILL, by a person or a program: ", report)


@pytest.mark.slow
def test_the_others_learn_the_reason_though_the_first_node_has_nothing_left_to_do(two_nodes, tmp_path):
    agents, ranks = two_nodes(ASLEEP, 1)
    os.kill(ranks[0], signal.SIGKILL)
    logs = [agent.communicate(timeout=60)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [137, 137], logs
    assert all(re.match(r"Rank 0 of 2 on \S+ was killed by SIGKILL", report) for report in reports(tmp_path))


def test_a_node_that_is_lost_ends_the_others_with_its_name(two_nodes, tmp_path):
    agents, ranks = two_nodes(WITHOUT_SMDDP)
    agents[1].kill()
    began = time.monotonic()
    log = agents[0].communicate(timeout=60)[1]
    assert time.monotonic() - began < 30
    assert agents[0].returncode == 1, log
    assert (tmp_path / "host-0" / "output" / "failure").read_text().startswith("Node 1, algo-2, was lost")
    assert "What failed first: Node 1, algo-2, was lost" in log
    for rank in (ranks[2], ranks[3]):  # of an agent that was killed
        os.kill(rank, signal.SIGKILL)


def test_a_rank_that_is_stopped_in_a_debugger_is_not_lost(two_nodes):
    agents, ranks = two_nodes(WITHOUT_SMDDP)
    os.kill(ranks[3], signal.SIGSTOP)
    time.sleep(2)
    assert [agent.poll() for agent in agents] == [None, None]
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
    os.kill(ranks[3], signal.SIGCONT)
    assert [agent.wait(timeout=30) for agent in agents] == [143, 143]


@pytest.mark.slow
def test_a_rank_s_own_reason_is_everybody_s(two_nodes, tmp_path):
    text = ASLEEP.replace("time.sleep(600)", "time.sleep(600) if job.cluster.rank != 2 else int('twelve')")
    agents, _ = two_nodes(text)
    logs = [agent.communicate(timeout=60)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [1, 1], logs
    for report in reports(tmp_path):
        assert report.startswith("ValueError: invalid literal for int() with base 10: 'twelve' (rank 2 of 4 on ")


def test_the_reason_of_one_rank_alone_is_how_it_was_killed(start, script, tmp_path):
    run = start("-m", "smddp.cli", "run", script("os.kill(os.getpid(), signal.SIGSEGV)"))
    _, log = run.communicate(timeout=60)
    assert run.returncode == 139
    report = (tmp_path / "runs" / "train" / "output" / "failure").read_text()
    assert re.match(r"Rank 0 of 1 on \S+ was killed by SIGSEGV", report)
    assert report in log.rpartition("What failed first:")[2]


def test_the_exit_code_is_that_of_the_rank_that_failed_first_though_it_ends_last(start, tmp_path, monkeypatch):
    monkeypatch.setenv("SMDDP_RUN_DIR", str(tmp_path))
    (tmp_path / "train.py").write_text(
        "import atexit, sys, time\nimport smddp\nfrom smddp.distributed import first_failure\n"
        "def main(job):\n"
        "    if job.cluster.rank == 1:\n"
        "        atexit.register(time.sleep, 3)\n"
        "        sys.exit(3)\n"
        "    time.sleep(60)\n"
        "first_failure._HEED_SECONDS = 0.5\n"
        "smddp.run(main)\n"
    )
    agent = start("-m", "smddp.launch.torchrun", "--nproc-per-node", "2", tmp_path / "train.py")
    _, log = agent.communicate(timeout=60)
    assert agent.returncode == 3, log


def test_no_traceback_that_a_rank_printed_is_in_the_log_again(start, script, tmp_path):
    path = script("print(f'this is rank {rank}', file=sys.stderr); raise ValueError('the data is broken')")
    run = start("-m", "smddp.cli", "run", "--processes-per-node", "2", path)
    _, log = run.communicate(timeout=60)
    assert re.search(r"What failed first: ValueError: the data is broken \(rank [01] of 2 on \S+\)\n\d\d:", log), log
    assert log.count("Traceback (most recent call last)") <= log.count("this is rank")
    assert "\nTraceback" in (tmp_path / "runs" / "train" / "output" / "failure").read_text()


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("raise ValueError('the data is broken')", {"Ranks 0, 1, 2 ended with code 1, after the same error."}),
        ("sys.exit(3)", {"Ranks 0, 1, 2 ended with code 3."}),
        (
            "raise ValueError('the data is broken' if rank else 'no data')",
            {"Rank 0 ended with code 1.", "Ranks 1, 2 ended with code 1, after the same error."},
        ),
    ],
)
def test_ranks_that_ended_alike_are_told_in_one_line(start, script, ending, told):
    # The first rank to end would end one that has no handler yet.
    together = "open(f'ready-{rank}', 'w').close()\n"
    together += "while not all(os.path.exists(f'ready-{each}') for each in range(3)): pass\n"
    run = start("-m", "smddp.cli", "run", "--processes-per-node", "3", script(together + ending))
    _, log = run.communicate(timeout=60)
    assert set(re.findall(r"ERROR smddp: (Ranks? [\d, ]+ ended .*)", log)) == told, log


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("if rank == 0: raise ValueError('the data is broken')\ntime.sleep(600)", "(rank 0 of 2 on algo-1)"),
        ("if rank == 1: raise ValueError('the data is broken')\ntime.sleep(600)", "(rank 1 of 2 on algo-2)"),
        ("raise ValueError('the data is broken')", "(rank "),
        (
            "if rank: open('ready', 'w').close()\nwhile not os.path.exists('ready'): time.sleep(0.01)\n"
            f"if rank == 0: {LOST}\ntime.sleep(1); raise ValueError('the data is broken')",
            "(rank 1 of 2 on algo-2)",
        ),
    ],
    ids=["of the first host", "of the second host", "of all ranks", "after one that lost contact"],
)
def test_the_traceback_of_the_rank_that_failed_first_is_the_reason_on_all_hosts(two_nodes, tmp_path, text, reason):
    agents, _ = two_nodes(BROKEN + text, 1, hear=False)
    logs = [agent.communicate(timeout=60)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [1, 1], logs
    first, second = reports(tmp_path)
    assert first == second
    assert first.startswith(f"ValueError: the data is broken {reason}")
    assert "\nTraceback (most recent call last):\n" in first


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "sys.excepthook = lambda *_: sys.stderr.write(PRINTED)\nif rank: raise ValueError",
            "ValueError: bad (rank 1 of 2",
        ),
        (
            "if rank: sys.stderr.write(GLOO); sys.stderr.flush(); os.abort()",
            "Rank 1 of 2 on * was killed by SIGABRT: term",
        ),
        ("if rank: sys.exit('no such file')", "Rank 1 of 2 on * ended with code 1: no such file"),
        (
            # Rank 1 takes no SIGTERM, which the agent sends as soon as rank 0 has ended.
            "import signal\nif rank: signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w').close()\n"
            f"while not os.path.exists('ready'): time.sleep(0.01)\nif rank == 0: {LOST}\ntime.sleep(0.5); os.abort()",
            "Rank 1 of 2 on * was killed by SIGABRT.",
        ),
        (
            "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "if rank == 0: time.sleep(0.5); sys.stderr.write(NCCL); sys.stderr.flush(); os.abort()\n"
            "time.sleep(1); os.kill(os.getpid(), 9)",
            "Rank 1 of 2 on * was killed by SIGKILL, by a person",
        ),
        (
            f"if rank == 0: time.sleep(1); {LOST}\nsys.stderr.write(PRINTED + 'step 1\\n'); sys.stderr.flush()",
            "RuntimeError: [[]pair.cc:545] Read error: Connection reset by peer (rank 0 of 2",
        ),
    ],
    ids=[
        "torch's prefix",
        "an abort",
        "a message",
        "an abort after a lost contact",
        "a kill after NCCL's abort of a peer",
        "SIGTERM is an effect",
    ],
)
def test_the_reason_of_a_script_alone_is_what_its_rank_has_printed(start, tmp_path, monkeypatch, text, reason):
    printed = "PRINTED = '[rank1]: Traceback (most recent call last):\\n[rank1]:   File a.py, line 1\\n"
    printed += "[rank1]: ValueError: bad\\n'\n"
    gloo = (
        "GLOO = 'terminate called after throwing gloo::EnforceNotMet\\n  what():  op.preamble.length <= op.nbytes\\n'\n"
    )
    nccl = (
        "NCCL = \"terminate called after throwing an instance of 'c10::DistBackendError'\\n  what():  [PG ID 0] "
        'Process group watchdog thread terminated with exception: Watchdog caught collective operation timeout\\n"\n'
    )
    (tmp_path / "train.py").write_text(BROKEN + printed + gloo + nccl + text + "\ntime.sleep(600)")
    monkeypatch.setenv("SMDDP_RUN_DIR", str(tmp_path))
    agent = start("-m", "smddp.launch.torchrun", "--nproc-per-node", "2", tmp_path / "train.py")
    log = agent.communicate(timeout=60)[1]
    report = (tmp_path / "output" / "failure").read_text()
    assert fnmatch.fnmatch(report, f"{reason}*"), log
    assert ("another number of steps" in report) is ("GLOO" in text)


CRASHES = """
import os, signal, sys, time
import torch.distributed as dist
import smddp

def main(job):
    print("about to crash", file=sys.stderr, flush=True)
    dist.barrier()
    if job.cluster.rank == 1:
        os.kill(os.getpid(), signal.{name})  # the fault
    dist.barrier()

smddp.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name", "printed"),
    [
        (("-m", "smddp.cli", "run", "--processes-per-node", "2"), "SIGABRT", "Aborted"),
        (("-m", "smddp.cli", "run", "--processes-per-node", "4"), "SIGSEGV", "Segmentation fault"),
        (("-m", "smddp.cli", "run", "--processes-per-node", "2"), "SIGBUS", "Bus error"),
        (("-m", "smddp.cli", "run", "--processes-per-node", "2"), "SIGKILL", ""),
        pytest.param(("-m", "smddp.launch.mpirun", "--processes", "2"), "SIGSEGV", "Segmentation fault", marks=MPI),
        pytest.param(("-m", "smddp.launch.mpirun", "--processes", "2"), "SIGKILL", "", marks=MPI),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else value,
)
def test_a_rank_that_a_signal_kills_is_told_with_its_line(start, tmp_path, monkeypatch, words, name, printed):
    (tmp_path / "train.py").write_text(CRASHES.format(name=name))
    monkeypatch.setenv("SMDDP_RUN_DIR", str(tmp_path))
    run = start(*words, tmp_path / "train.py")
    _, log = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.Signals[name], log
    report = (tmp_path / "output" / "failure").read_text()
    assert re.match(rf"Rank 1 of [24] on \S+ was killed by {name}", report)
    if printed:
        assert f": Fatal Python error: {printed}\n" in report
        assert report.endswith(f"/train.py:10 main: os.kill(os.getpid(), signal.{name})  # the fault")
    else:
        assert "by a person or a program: the kernel has counted no OOM kill." in report
        assert report.splitlines()[-1] == "  about to crash"
