from __future__ import annotations

import logging
import re
import signal
import sys
import textwrap
import time

import pytest

from smddp.errors import DistributedError
from smddp.launch.local import find_nodes, run_local
from smddp.process.process_tree import Descendants, started
from tests.ports import free_port

RUN = "import sys; from smddp.launch.local import run_local; sys.exit(run_local(sys.argv[1], sys.argv[2:], {}))"

SHELL = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
TASK = {
    **SHELL,
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[01-02]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
INSTANCE = {
    "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": "1",
    "PAI_CURRENT_TASK_ROLE_NAME": "worker",
    "PAI_TASK_ROLE_TASK_COUNT_worker": "2",
    "PAI_HOST_IP_worker_0": "10.0.0.1",
    "PAI_HOST_IP_worker_1": "10.0.0.2",
    "PAI_PORT_LIST_worker_0_master": "4321",
}


def run(start, path, options, *arguments):
    return start("-c", RUN.format(options), path, *arguments)


@pytest.mark.usefixtures("fork_python")
def test_two_nodes_on_this_machine_are_one_world_with_one_run_directory(start, script, tmp_path):
    path = script("e = os.environ; print(rank, e['WORLD_SIZE'], e['GROUP_RANK'], e['SMDDP_RUN_DIR'], sys.argv[1])")
    out, error = run(start, path, "nodes=2, processes_per_node=2", "--lr=1").communicate(timeout=60)
    where = tmp_path / "runs" / "train"
    assert sorted(out.splitlines()) == [f"{rank} 4 {rank // 2} {where} --lr=1" for rank in range(4)], error


@pytest.mark.usefixtures("fork_python")
def test_when_one_node_fails_the_others_end_and_its_code_is_kept(start, script):
    path = script("if rank == 1: sys.exit(9)\nwait(); sys.exit(0)")
    assert run(start, path, "nodes=2").wait(timeout=60) == 9


@pytest.mark.usefixtures("fork_python")
def test_a_stop_reaches_every_rank_of_every_node(start, script):
    process = run(start, script("print('up'); wait(); sys.exit(75)"), "nodes=2, run_dir='here'")
    assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 75


def test_an_interrupt_before_the_ranks_begin_says_that_nothing_was_saved(start, script):
    process = start("-m", "smddp.cli", "run", "--nodes", "2", script("sys.exit(1)"))
    while not Descendants(process.pid).parents:  # the launcher catches signals before it starts agents
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    log = process.communicate(timeout=60)[1]
    assert process.returncode == 75, log
    assert "stopping, with a checkpoint if training has begun; Ctrl-C again ends it" in log
    assert log.count("stopped before the ranks began, exit code 75: this run saved nothing") == 1


def test_an_interrupt_of_a_script_without_smddp_promises_no_checkpoint_and_waits_for_no_handler(start, tmp_path):
    path = tmp_path / "plain.py"
    path.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    process = start("-m", "smddp.cli", "run", str(path))
    assert process.stdout.readline() == "up\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    log = process.communicate(timeout=60)[1]
    assert time.monotonic() - began < 10
    assert process.returncode == 143, log
    assert "stopping; Ctrl-C again ends it" in log


@pytest.mark.slow
def test_a_launcher_that_is_killed_stops_its_ranks_too(start, script, tmp_path):
    path = script("print('up'); wait(); open(f'stopped-{rank}', 'w').close(); sys.exit(75)")
    process = run(start, path, "processes_per_node=2")
    assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    process.kill()
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("stopped-*"))) < 2:
        assert time.monotonic() < deadline, "the ranks go on without their launcher"
        time.sleep(0.05)


@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize(
    ("text", "ranks", "told"),
    [
        ("print('trained')", 2, 1),
        ("print('trained')", 1, 0),
        ("sys.exit(3)", 2, 0),
        ("import torch.distributed as dist; dist.init_process_group('gloo'); dist.destroy_process_group()", 2, 0),
    ],
)
def test_ranks_that_never_form_a_group_are_warned_of(start, script, text, ranks, told):
    log = run(start, script(text), f"processes_per_node={ranks}").communicate(timeout=60)[1]
    assert log.count("no rank joined the process group of this run") == told, log


def test_what_a_rank_leaves_behind_ends_with_the_run_and_is_told(start, script, tmp_path):
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN if rank else lambda *_: sys.exit(0))\n"
    path = script("if os.fork(): os._exit(0)\nos.setsid()\n" + text + "print(os.getpid(), flush=True); time.sleep(600)")
    out, log = run(start, path, "nodes=2").communicate(timeout=90)
    left = [int(line) for line in out.split()]
    assert [started(process) for process in left] == [None, None], log
    told = [line for line in log.splitlines() if "Left behind" in line]
    assert len(told) == 2
    assert all(f"{process} ({sys.executable} {path})" in "".join(told) for process in left), told


@pytest.mark.usefixtures("fork_python")
def test_the_ranks_wait_as_long_as_the_run_says(start, script):
    run = start("-m", "smddp.cli", "run", "--timeout", "600", script("print(os.environ['SMDDP_TIMEOUT'])"))
    assert run.communicate(timeout=60)[0] == "600\n"


@pytest.mark.usefixtures("fork_python")
def test_one_node_of_a_real_cluster_runs_its_own_ranks_only(start, script):

    path = script("print(rank, os.environ['WORLD_SIZE'])")
    where = f"nodes=2, master_addr='127.0.0.1', master_port={free_port()}"
    nodes = [run(start, path, f"{where}, node_rank={rank}") for rank in range(2)]
    assert [node.communicate(timeout=60)[0] for node in nodes] == ["0 2\n", "1 2\n"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 0}, "one or more"),
        ({"nodes": 2, "node_rank": 2}, "--node-rank 2: expected one of 0 to 1"),
        ({"nodes": 2, "node_rank": 0}, "address and port"),
        ({"master_addr": "10.0.0.1"}, "give the node rank"),
        ({"master_port": -5}, "port -5 is no TCP port: give one from 1 to 65535"),
        ({"timeout": 0.0}, "A timeout of 0: a timeout is more than 0"),
    ],
)
def test_what_contradicts_itself_is_refused(options, message):
    with pytest.raises(DistributedError, match=message):
        run_local(__file__, **options)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("jobs.trian", "There is no module jobs.trian. Did you mean jobs.train?"),
        ("jobs", "jobs is a package without the module __main__, which -m would run: give one of its modules"),
        ("jobs.broken", "broken.py, line 1: invalid syntax. Python can't compile it."),
    ],
)
def test_a_module_that_can_not_run_is_told_before_anything_starts(module, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    for name, text in {"__init__": "open('imported', 'w')", "train": "", "broken": "x = = 1"}.items():
        (tmp_path / "jobs" / f"{name}.py").write_text(text)
    with pytest.raises(DistributedError, match=f"^{re.escape(said)}"):
        run_local(module, module=True)
    assert [each.name for each in tmp_path.iterdir()] == ["jobs"]


@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize(("module", "directory"), [("jobs", "jobs"), ("jobs.inner.train", "train")])
def test_each_rank_runs_a_module_as_python_does(start, tmp_path, module, directory):
    body = "import os, sys\nfrom . import data\n"
    body += "print(os.environ['RANK'], sys.argv, __name__, __package__, __spec__.name, sys.path[0], data.__name__)\n"
    body += "print(os.environ['SMDDP_RUN_DIR'])\n"
    for inner in ("jobs", "jobs/inner"):  # namespace packages
        (tmp_path / inner).mkdir()
        for name, text in {"data": "", "train": body, "__main__": body}.items():
            (tmp_path / inner / f"{name}.py").write_text(text)
    told, error = run(start, module, "module=True, processes_per_node=2", "--lr=1", "-m").communicate(timeout=60)
    package, _, name = (module if "." in module else f"{module}.__main__").rpartition(".")
    argv = [str(tmp_path.joinpath(*package.split("."), f"{name}.py")), "--lr=1", "-m"]
    seen = f"{argv} __main__ {package} {package}.{name} {tmp_path} {package}.data"
    assert sorted(told.splitlines()) == sorted([f"0 {seen}", f"1 {seen}", *[str(tmp_path / "runs" / directory)] * 2]), (
        error
    )


@pytest.mark.usefixtures("fork_python")
def test_a_module_that_only_its_package_finds_is_left_to_the_ranks(start, tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").write_text("__path__.append('elsewhere')")
    process = run(start, "jobs.late", "module=True")
    assert "No module named jobs.late" in process.communicate(timeout=60)[1]
    assert process.returncode == 1
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "late.py").write_text("print(__name__)")
    assert run(start, "jobs.late", "module=True").communicate(timeout=60)[0] == "__main__\n"


def test_a_script_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DistributedError, match=r"no script .*train\.py"):
        run_local(tmp_path / "train.py")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trian.py", "There is no script trian.py. Did you mean train.py?"),
        ("train", "There is no script train. Did you mean train.py?"),
        ("evaluate_all.py", "There is no script evaluate_all.py (looked in "),
        ("src/train.py", "There is no script src/train.py: there is no directory src. Did you mean train.py?"),
        ("src/evaluation.py", "There is no script src/evaluation.py: there is no directory src."),
        (".", ". is a directory: give the path of the script itself."),
    ],
)
def test_a_script_that_is_not_there_is_told_with_the_nearest(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(DistributedError, match=f"^{re.escape(said)}"):
        run_local(name)


@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize("words", [["--help"], ["--epochs", "3", "--help"], ["-h"]])
def test_the_help_of_a_script_is_shown_once_and_makes_no_directory(start, script, tmp_path, words):
    path = script("print('help', rank, os.environ['SM_MODEL_DIR']); sys.exit(3)")
    process = run(start, path, "nodes=2, processes_per_node=2", *words)
    assert process.communicate(timeout=60)[0] == f"help -1 {tmp_path / 'runs' / 'train' / 'model'}\n"
    assert process.returncode == 3
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("fork_python")
def test_the_help_of_a_module_is_shown_once(start, script):
    script("print('help', __spec__.name, rank, sys.argv[1:])")
    out, error = run(start, "train", "module=True, processes_per_node=2", "--help").communicate(timeout=60)
    assert out == "help train -1 ['--help']\n", error


@pytest.mark.usefixtures("fork_python")
def test_an_option_of_one_letter_among_others_is_no_request_for_help(start, script):
    out, error = run(start, script("print(rank)"), "processes_per_node=2", "-h", "3").communicate(timeout=60)
    assert sorted(out.split()) == ["0", "1"], error


def test_importing_it_does_not_load_torch(start):
    process = start("-c", "import sys, smddp.launch.local; sys.exit('torch' in sys.modules)")
    assert process.wait(timeout=30) == 0


SHOW = "e = os.environ; print(*(f'{name}={e[name]}' for name in sorted(e) if name.startswith('SM_')), sep='|')"


def shown(out: str) -> list[dict[str, str]]:
    return [dict(pair.split("=", 1) for pair in line.split("|")) for line in sorted(out.splitlines())]


@pytest.mark.usefixtures("fork_python")
def test_a_script_written_for_sagemaker_finds_its_variables_in_the_run_directory(start, script, tmp_path, monkeypatch):
    monkeypatch.setenv("SM_CHANNEL_TRAINING", "/data")
    monkeypatch.setenv("SM_OUTPUT_DATA_DIR", "/mine")
    logged = "import logging; logging.basicConfig(level=logging.DEBUG); " + RUN.format("nodes=2")
    out, error = start("-c", logged, script(SHOW)).communicate(timeout=60)
    where = tmp_path / "runs" / "train"
    first, second = shown(out)
    assert first["SM_MODEL_DIR"] == str(where / "model")
    assert (where / "model").is_dir()
    assert first["SM_OUTPUT_DIR"] == str(where / "output")
    assert (first["SM_OUTPUT_DATA_DIR"], first["SM_CHANNEL_TRAINING"]) == ("/mine", "/data")
    assert (first["SM_CHANNELS"], first["SM_HPS"]) == ('["training"]', "{}")
    assert [each["SM_CURRENT_HOST"] for each in (first, second)] == ["algo-1", "algo-2"]
    assert first["SM_HOSTS"] == second["SM_HOSTS"] == '["algo-1", "algo-2"]'
    assert int(first["SM_NUM_CPUS"]) >= 1 and int(first["SM_NUM_GPUS"]) >= 0
    assert "Set for scripts written for SageMaker, to the run's directory: SM_MODEL_DIR, SM_OUTPUT_DIR" in error


@pytest.mark.usefixtures("fork_python")
def test_those_variables_make_no_sagemaker_job_of_a_run(start, script, tmp_path):
    body = """
    from smddp.cluster import Cluster
    from smddp.job import Job
    cluster, job = Cluster.detect(), Job.detect()
    print(cluster.launcher, cluster.world_size, job.on_sagemaker, job.model_dir)
    os.environ["SMDDP_RUN_DIR"] = "/another"
    print(Job.detect().model_dir)
    """
    out, error = run(start, script(textwrap.dedent(body)), "nodes=1").communicate(timeout=60)
    assert out.splitlines() == [f"torchrun 1 False {tmp_path / 'runs' / 'train' / 'model'}", "/another/model"], error


@pytest.mark.usefixtures("fork_python")
def test_hyperparameters_come_from_the_command_line_all_the_same(start, script):
    body = """
    from dataclasses import dataclass
    from smddp.job import hyperparameters
    @dataclass
    class Config:
        lr: float
    print(hyperparameters.load(Config).lr)
    """
    out, error = run(start, script(textwrap.dedent(body)), "nodes=1", "--lr=0.5").communicate(timeout=60)
    assert out == "0.5\n", error


@pytest.mark.usefixtures("fork_python")
def test_a_run_inside_of_a_run_has_its_own_directory(start, script, tmp_path, monkeypatch):
    monkeypatch.setenv("SMDDP_SM_VARIABLES", "SM_MODEL_DIR,SM_HOSTS,SM_CURRENT_HOST")
    monkeypatch.setenv("SM_MODEL_DIR", "/outer")
    monkeypatch.setenv("SM_HOSTS", '["algo-7"]')
    out, error = run(start, script(SHOW), "nodes=1, run_dir='inner'").communicate(timeout=60)
    (found,) = shown(out)
    assert (found["SM_MODEL_DIR"], found["SM_HOSTS"]) == (str(tmp_path / "inner" / "model"), '["algo-1"]'), error


@pytest.mark.usefixtures("fork_python")
def test_a_job_of_sagemaker_keeps_its_variables(start, script, monkeypatch):
    monkeypatch.setenv("SM_HOSTS", '["algo-1"]')
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")
    out, error = run(start, script(SHOW), "nodes=1").communicate(timeout=60)
    assert shown(out) == [{"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}], error


@pytest.mark.parametrize(("environ", "address"), [(TASK, "gpu01"), (INSTANCE, "10.0.0.1")])
def test_a_task_of_a_launcher_is_a_node(environ, address):
    nodes = find_nodes(environ)
    assert (nodes.count, nodes.rank, nodes.master_addr, [*nodes.here]) == (2, 1, address, [1])
    assert find_nodes(environ, count=2) == nodes
    assert nodes.master_port == (4321 if environ is INSTANCE else find_nodes({**TASK, "SLURM_PROCID": "0"}).master_port)
    assert find_nodes(environ, master_addr="10.1.1.1", master_port=5000).master_addr == "10.1.1.1"


def test_what_the_caller_says_of_this_node_wins():
    nodes = find_nodes(TASK, count=4, rank=3, master_addr="a", master_port=5000)
    assert (nodes.count, nodes.rank, nodes.master_addr, nodes.master_port) == (4, 3, "a", 5000)


def test_a_run_whose_nodes_are_all_here_may_use_any_port():
    assert find_nodes({}).master_port == 0
    assert find_nodes({}, count=2).master_port == 0
    assert find_nodes({}, count=2, master_port=5000).master_port == 5000


def test_variables_that_no_launcher_of_nodes_has_set_are_told_and_not_read(caplog):
    caplog.set_level(logging.INFO)
    environ = {"WORLD_SIZE": "4", "RANK": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "23456"}
    nodes = find_nodes(environ, count=2)
    assert (nodes.rank, [*nodes.here], nodes.master_addr) == (None, [0, 1], "127.0.0.1")
    assert nodes.master_port != 23456
    (told,) = caplog.messages
    assert told.startswith(
        "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: set, and ignored, as torchrun does. All ranks run on this"
    )
    caplog.clear()
    find_nodes(environ, count=2, rank=0, master_addr="10.0.0.1", master_port=23456)
    find_nodes({**TASK, "MASTER_PORT": "23456"})  # read
    assert caplog.messages == []


def test_nodes_that_the_launcher_does_not_have_are_refused():
    with pytest.raises(DistributedError, match="--nodes 3, but SLURM_STEP_ID=0 started this on 2 nodes: leave"):
        find_nodes(TASK, count=3)


def test_several_tasks_on_a_node_are_refused():
    several = {**TASK, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "2"}
    with pytest.raises(DistributedError, match=r"started 4 tasks on 2 node\(s\).* --ntasks-per-node=1"):
        find_nodes(several)


def test_an_allocation_of_which_nodes_are_left_unused_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        assert find_nodes(SHELL).count == 1
    assert "SLURM_JOB_ID=7 has 2 nodes, and this trains on one of them" in caplog.text
    caplog.clear()
    find_nodes({**SHELL, "SLURM_JOB_NUM_NODES": "1"})
    find_nodes(TASK)
    assert not caplog.records
