"""NodeRendezvous of ranks: real agents on this machine, whose scripts leave torch alone, and one job that trains."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest

from smddp.process.exit_codes import announce_stop
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("fork_python")

TORCHRUN = ("-m", "smddp.launch.torchrun")
ROUND = "round = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"


@pytest.fixture
def agents(start):
    """Starts the agents of two nodes."""

    def start_two(path, *options, ranks=1, first=TORCHRUN):
        port = str(free_port())
        common = ("--nnodes", "2", "--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", port)
        return [
            start(*program, *common, "--node-rank", str(rank), *options, path)
            for rank, program in enumerate((first, TORCHRUN))
        ]

    return start_two


def ended(agents):
    """The exit code, the output and the log of each."""
    said = [agent.communicate(timeout=90) for agent in agents]
    return [(agent.returncode, sorted(out.splitlines()), log) for agent, (out, log) in zip(agents, said, strict=True)]


def up(agent, number=1):
    return [agent.stdout.readline().strip() for _ in range(number)]


def test_a_killed_rank_restarts_the_ranks_of_all_nodes_each_with_its_number(agents, script):
    text = "say(f'{round} {rank}')\nif round: sys.exit(0)\nopen(f'up-{rank}', 'w').close()\n"
    text += "while rank == 2 and not all(os.path.exists(f'up-{other}') for other in range(4)): time.sleep(0.01)\n"
    path = script(ROUND + text + "if rank == 2: os.kill(os.getpid(), 9)\nwait(); say('asked to stop')")
    began = time.monotonic()
    first, second = ended(agents(path, "--max-restarts", "3", ranks=2))
    assert first[:2] == (0, ["0 0", "0 1", "1 0", "1 1"]), first[2]
    assert second[:2] == (0, ["0 2", "0 3", "1 2", "1 3"]), second[2]
    for log in (first[2], second[2]):
        assert (
            "Rank 2 ended with code 137 (SIGKILL): restarting all ranks of all nodes; 2 of 3 restarts are left." in log
        )
    assert time.monotonic() - began < 60, "the survivors were given a grace in which they can't do anything"


@pytest.mark.slow
def test_once_restarts_are_used_up_the_first_failure_s_code_stands(agents, script):
    path = script(ROUND + "say(f'{round}')\nif rank == 1: sys.exit(9)\nwait(); sys.exit(1)")
    first, second = agents(path, "--max-restarts", "2")
    out, log = second.communicate(timeout=90)
    assert (second.returncode, out.split()) == (9, ["0", "1", "2"]), log
    assert "1 of 2 restarts are left" in log
    assert "0 of 2 restarts are left" in log
    assert first.wait(timeout=30) == 9  # though its rank waits for ever: contact is not lost by itself in this script


def stopped(agents, path):
    """How both nodes end that are told to stop in the first round, which may be begun again."""
    both = agents(path, "--max-restarts", "3")
    assert [up(agent) for agent in both] == [["0"], ["0"]]
    for agent in both:
        agent.send_signal(signal.SIGTERM)
    return ended(both)


def test_a_stop_is_not_restarted(agents, script):
    path = script(ROUND + "say(f'{round}'); wait(); sys.exit(75 if rank else 143)")
    assert [(code, out) for code, out, _ in stopped(agents, path)] == [(143, []), (75, [])]


def test_a_stop_lets_a_node_s_ranks_save_though_the_first_node_and_its_store_have_ended(agents, script):
    path = script(ROUND + "say(f'{round}'); wait(); time.sleep(2 * rank); say('saved'); sys.exit(75)")
    first, second = stopped(agents, path)
    assert (first[:2], second[:2]) == ((75, ["saved"]), (75, ["saved"])), second[2]


STOPPED_BEFORE_RANKS = """
import sys, time
from smddp.launch import agent, torchrun
agent.Agent._start_workers = lambda *_: (print("met", flush=True), time.sleep(60))
torchrun._end(torchrun.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("early", [0, 1])
def test_a_node_that_a_stop_ends_before_its_ranks_start_is_no_loss_to_the_others(start, script, early):
    port, path = str(free_port()), script("say('up'); wait(); time.sleep(1); say('saved'); sys.exit(75)")
    common = ("--nnodes", "2", "--master-port", port, "--node-rank")
    stopped = start("-c", STOPPED_BEFORE_RANKS, *common, str(early), path)
    other = start(*TORCHRUN, *common, str(1 - early), path)
    assert up(stopped) == ["met"]
    assert up(other) == ["up"]
    stopped.send_signal(signal.SIGTERM)  # to it alone, and the other is told
    assert stopped.wait(timeout=30) == 75
    out, log = other.communicate(timeout=30)
    assert (other.returncode, out) == (75, "saved\n"), log


def test_ranks_that_end_resumable_are_not_restarted_where_no_signal_came(agents, script):
    path = script(ROUND + "say(f'{round}'); sys.exit(75)")
    assert [(code, out) for code, out, _ in ended(agents(path, "--max-restarts", "3"))] == [(75, ["0"]), (75, ["0"])]


def test_a_failure_during_a_stop_ends_the_job_instead_of_waiting_for_a_checkpoint(agents, script, tmp_path):
    path = script("say(f'{os.getpid()}'); wait(); open(f'told-{rank}', 'w').close(); time.sleep(300)")
    first, second = agents(path, "--max-restarts", "3")
    ranks = [int(up(agent)[0]) for agent in (first, second)]
    second.send_signal(signal.SIGTERM)
    while not (tmp_path / "told-1").exists():
        time.sleep(0.01)
    os.kill(ranks[0], signal.SIGKILL)
    (code, _, log), (stopped, _, stopped_log) = ended([first, second])
    assert (code, stopped) == (137, 137)
    assert "The ranks can't be restarted: another node has ended already" in log
    assert "A rank of another node failed during the stop" in stopped_log


TELLS_ITS_RESULT = """
import sys
from pathlib import Path
from smddp.launch import agent, torchrun
result = agent.Agent._result

def tell(*words, **options):
    found = result(*words, **options)
    Path("first-has-ended").touch()
    return found

agent.Agent._result = tell
torchrun._end(torchrun.main(sys.argv[1:]))
"""
ENDS_LATER = "while rank and not os.path.exists('first-has-ended'): time.sleep(0.01)\n"
ENDS_LATER += "if rank: time.sleep(1); sys.exit(9)"


@pytest.mark.slow
def test_a_node_that_has_ended_well_does_not_wait_for_one_that_failed(agents, script):
    began = time.monotonic()
    first, second = agents(script(ENDS_LATER), first=("-c", TELLS_ITS_RESULT))
    assert (first.wait(timeout=30), second.wait(timeout=30)) == (0, 9)
    assert time.monotonic() - began < 25


@pytest.mark.slow
def test_a_node_that_has_ended_well_is_not_waited_for(agents, script, tmp_path):
    began = time.monotonic()
    first, second = agents(script(ENDS_LATER), "--max-restarts", "3", first=("-c", TELLS_ITS_RESULT))
    _, log = second.communicate(timeout=90)
    assert second.returncode == 9
    assert "The ranks can't be restarted: another node has ended already" in log
    assert first.wait(timeout=30) == 0  # it does not wait, for five minutes, until the other has ended as well
    assert time.monotonic() - began < 50


LOOKS_SELDOM = """
import sys
from smddp.launch import torchrun
torchrun.POLL_SECONDS = 60.0
torchrun._end(torchrun.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("running", [True, False])
def test_the_loss_of_the_first_node_is_said_in_bounded_time(agents, script, running):
    path = script("say(f'{os.getpid()}'); wait(); sys.exit(9)")
    first, second = agents(path, "--max-restarts", "3", first=("-c", LOOKS_SELDOM))
    ranks = [int(up(agent)[0]) for agent in (first, second)]
    if not running:
        os.kill(ranks[1], signal.SIGKILL)
        while "ended with code 137" not in second.stderr.readline():
            pass
    first.kill()
    os.kill(ranks[0], signal.SIGKILL)
    _, log = second.communicate(timeout=30)
    assert "127.0.0.1:" in log
    assert "was lost: its agent or its host has ended" in log
    assert second.returncode == (1 if running else 137), log


def test_the_report_of_an_earlier_round_is_not_the_reason_of_the_last_one_s_end(start, script, tmp_path):
    text = "if round: os.kill(os.getpid(), 9)\noutput = os.environ['SMDDP_RUN_DIR'] + '/output'\n"
    text += "os.makedirs(output, exist_ok=True)\nopen(output + '/failure', 'w').write('ValueError: 3'); sys.exit(1)"
    run = start("-m", "smddp.cli", "run", "--max-restarts", "1", script(ROUND + text))
    _, log = run.communicate(timeout=60)
    assert run.returncode == 137
    assert "The report of the round that ended: ValueError: 3" in log
    report = (tmp_path / "runs" / "train" / "output" / "failure").read_text()
    assert re.match(r"Rank 0 of 1 on \S+ was killed by SIGKILL", report)


def test_a_failure_after_a_stop_that_the_container_s_first_process_told_is_not_restarted(
    start, script, tmp_path, monkeypatch
):
    (tmp_path / "exits").mkdir()
    monkeypatch.setenv("SMDDP_ENDINGS", str(tmp_path / "exits"))
    announce_stop(str(tmp_path / "exits"))
    agent = start("-m", "smddp.launch.torchrun", "--max-restarts", "3", script(ROUND + "say(f'{round}'); sys.exit(9)"))
    out, log = agent.communicate(timeout=60)
    assert (agent.returncode, out) == (9, "0\n"), log


def test_fewer_than_no_restarts_are_refused(start, script):
    agent = start("-m", "smddp.launch.torchrun", "--max-restarts", "-1", script(""))
    assert "there must be 0 or more" in agent.communicate(timeout=30)[1]


TRAINING = """
import json, os, signal, sys, time
import torch
import smddp

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 240
    def __getitem__(self, index): return torch.tensor([float(index)])

def main(job: smddp.Job):
    round = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    policy = smddp.CheckpointPolicy(every=10)
    model = torch.nn.Linear(1, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=1e-6), checkpoints=policy)
    loader = trainer.loader(Numbers(), batch_size=4)
    with open(f"seen-{round}-{job.cluster.rank}", "w") as seen:
        for _ in trainer.epochs(1):
            for batch in trainer.batches(loader):
                trainer.step(trainer.model(batch).mean())
                print(json.dumps([trainer.steps, batch.int().flatten().tolist()]), file=seen, flush=True)
                if round == 0 and job.cluster.rank == 1 and trainer.steps == 35:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.02)

if __name__ == "__main__":
    smddp.run(main)
"""


@pytest.mark.slow
def test_training_goes_on_from_the_newest_checkpoint_with_each_sample_once(start, tmp_path, monkeypatch):
    monkeypatch.setenv("FORK_PYTHON_FINALIZES", "1")  # an abort at Python's own end would be the rank's exit code
    (tmp_path / "train.py").write_text(TRAINING)
    run = start("-m", "smddp.cli", "run", "--nodes", "2", "--max-restarts", "1", tmp_path / "train.py")
    _, log = run.communicate(timeout=110)
    assert run.returncode == 0, log
    assert "Rank 1 ended with code 137 (SIGKILL): restarting all ranks of all nodes; 0 of 1 restarts are left." in log
    resumed = int(re.search(r"resumed at step (\d+)", log)[1])
    assert 20 <= resumed <= 35
    steps = [
        (number, *json.loads(line))
        for number in range(2)
        for rank in range(2)
        for line in (tmp_path / f"seen-{number}-{rank}").read_text().splitlines()
    ]
    kept = [sample for number, step, samples in steps if number == 1 or step <= resumed for sample in samples]
    assert sorted(kept) == list(range(240))
    assert not (tmp_path / "runs" / "train" / "output" / "failure").exists()


def test_the_process_group_of_a_plain_script_meets_again_after_a_restart(agents, script):
    # Rank 0 is late in the second round: the other ranks must not read the address that it had in the first one.
    text = (
        "import datetime, torch, torch.distributed as dist\n"
        "if round and rank == 0: time.sleep(2)\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=20))\n"
        "total = torch.ones(1)\ndist.all_reduce(total)\nsay(f'{round} {rank} {total.item():g}')\n"
        "dist.barrier()\n"
        "if not round: os.kill(os.getpid(), 9) if rank == 1 else wait()\n"
        "dist.destroy_process_group()\n"
    )
    first, second = ended(agents(script(ROUND + text), "--max-restarts", "1"))
    assert first[:2] == (0, ["0 0 2", "1 0 2"]), first[2]
    assert second[:2] == (0, ["0 1 2", "1 1 2"]), second[2]
