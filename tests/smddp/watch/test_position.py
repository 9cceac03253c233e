"""What a sample tells of this process: its phase, its line, and whether it computes."""

from __future__ import annotations

import bdb
import os
import pdb
import subprocess
import sys
import time
from pathlib import Path
from traceback import FrameSummary

import pytest

from smddp.cluster import Cluster
from smddp.process import process_tree
from smddp.watch import position, watchdog
from smddp.watch.collective_log import CollectiveLog
from smddp.watch.position import Sampler, phase_of


def frames(*files: str) -> list[FrameSummary]:
    return [FrameSummary(file, 1, "call") for file in files]


@pytest.mark.parametrize(
    ("files", "phase"),
    [
        (["/job/train.py", "/env/torch/utils/data/dataloader.py", "/usr/lib/python3.11/threading.py"], "data"),
        (["/job/train.py", "/env/torch/_tensor.py", "/env/torch/autograd/graph.py"], "backward"),
        (["/job/train.py", "/env/torch/nn/modules/module.py", "/env/torch/_dynamo/eval_frame.py"], "compile"),
        (["/job/train.py", "/env/torch/_tensor.py", "/env/torch/autograd/graph.py", "/job/hooks.py"], "script"),
        (["/job/train.py", "/env/torch/distributed/distributed_c10d.py", "/env/torch/_ops.py"], "collective"),
        (["/env/torch/autograd/graph.py", "/env/smddp/watch/collective_log.py"], "backward"),  # it is held
        (["/job/train.py", "/env/torch/nn/modules/module.py", "/env/torch/nn/parallel/distributed.py"], "collective"),
        (["/env/torch/nn/parallel/distributed.py", "/env/torch/nn/modules/linear.py"], "forward"),
        (["/job/train.py", "/env/torch/optim/adamw.py"], "optimizer"),
        (["/job/train.py", "/env/smddp/checkpoint/save/rank_saver.py"], "checkpoint"),
        (["/job/train.py"], "script"),
        (["/job/train.py", "/env/requests/sessions.py", "/usr/lib/python3.11/ssl.py"], "network"),
        (["/job/train.py", "/env/torch/nn/modules/module.py", bdb.__file__], "debugger"),
        (["/job/train.py", pdb.__file__, "/lib/cmd.py"], "debugger"),  # pdb.post_mortem
        (["/env/debugpy/_vendored/pydevd/pydevd.py", "/job/train.py", "/env/pydevd/pydevd.py"], "debugger"),
        (["/job/train.py", "/env/IPython/terminal/embed.py"], "debugger"),
    ],
)
def test_the_stack_tells_the_phase(files: list[str], phase: str) -> None:
    assert phase_of(frames(*files)) == phase


def test_the_line_of_a_phase_is_the_one_seen_most_often_of_late(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, sampler = [0], Sampler(Cluster.detect({}), steps=lambda: 3, collectives=CollectiveLog())
    loader = FrameSummary("/env/torch/utils/data/dataloader.py", 1, "fetch")
    monkeypatch.setattr(
        position, "main_stack", lambda: [loader, FrameSummary("/job/train.py", seen[-1], "__getitem__")]
    )
    told = []
    for line in (*[7] * 9, 8, *[9] * 9, 10):
        seen.append(line)
        sampler.glance(with_line=True)
        told.append(sampler.sample({}).lines["data"])
    assert [told[8], told[9], told[-2], told[-1]] == [f"job/train.py:{n} __getitem__" for n in (7, 7, 9, 9)]


def test_a_process_that_computes_is_not_still(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used = 100.0, (5.0, 1000)
    monkeypatch.setattr(position.time, "monotonic", lambda: now)
    monkeypatch.setattr(position.process_tree, "usage", lambda: used)
    sampler = Sampler(Cluster.detect({}), steps=lambda: 3, collectives=CollectiveLog())
    assert sampler.sample({}).idle == 0
    now = 101.0
    sampler.sample({})
    now, used = 110.0, (5.05, 2000)  # what this thread and the store need
    sample = sampler.sample({})
    assert (sample.idle, sample.still) == (10.0, 9.0)
    now, used = 111.0, (7.0, 2000)
    sample = sampler.sample({})
    assert (sample.idle, sample.still) == (11.0, 0.0)
    now, used = 112.0, (7.0, 2000 + 2**21)
    assert sampler.sample({}).still == 0.0


def test_usage_counts_child_processes_but_not_this_thread() -> None:
    before = process_tree.usage()
    assert before is not None
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            time.sleep(0.1)
            after = process_tree.usage()
            assert after is not None
            if after[0] - before[0] > 0.3:
                break
        else:
            pytest.fail("the child's seconds are not counted")
        assert process_tree.state(child.pid) == "R"
    finally:
        child.kill()
        child.wait()
    assert process_tree.state(child.pid) == ""


def test_a_process_that_does_nothing_is_still_from_the_first_comparison_on() -> None:
    """Its usage is the process's less the watchdog's thread's, which is most of it."""
    program = """
import threading, time
from smddp.cluster import Cluster
from smddp.watch.collective_log import CollectiveLog
from smddp.watch.position import Sampler

def look():
    sampler = Sampler(Cluster.detect({}), steps=lambda: 3, collectives=CollectiveLog())
    samples = []
    for _ in range(22):
        samples.append(sampler.sample({}))
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        time.sleep(0.02)
    print(sum(each.still == 0 for each in samples[2:]))

thread = threading.Thread(target=look)
thread.start()
thread.join()
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert told.stdout == "0\n"


def test_the_usual_pause_is_learned_from_the_first_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now, steps = 100.0, 0
    monkeypatch.setattr(position.time, "monotonic", lambda: now)
    sampler = Sampler(Cluster.detect({}), steps=lambda: steps, collectives=CollectiveLog())
    sampler.sample({})
    now, steps = 700.0, 1
    assert sampler.sample({}).usual == 0  # imports, and a compilation
    for steps in range(2, 40):  # noqa: B007
        now += 60
        usual = sampler.sample({}).usual
    assert 55 < usual < 60


def test_a_process_that_gets_little_of_a_core_is_not_still(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used, starved = 100.0, (5.0, 1000), 0.0
    monkeypatch.setattr(position.time, "monotonic", lambda: now)
    monkeypatch.setattr(position.process_tree, "usage", lambda: used)
    monkeypatch.setattr(position.process_tree, "scheduled", lambda *_: (5.0, starved))
    sampler = Sampler(Cluster.detect({}), steps=lambda: 3, collectives=CollectiveLog())
    sampler.sample({})
    now = 101.0
    sampler.sample({})
    now, used = 131.0, (5.4, 1000)
    assert sampler.sample({}).still == 30.0
    starved = 29.0
    assert sampler.sample({}).still == 0.0


def test_a_thread_computes_also_where_others_have_the_cores() -> None:
    # Nice, for they would take a core from the other tests.
    core = f"import os; os.nice(10); os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"
    # The main thread sleeps with Python's lock; the other one wakes up 200 times a second to ask for it.
    blocked = "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()\n"
    blocked += "sleep = ctypes.PyDLL(None).sleep\nprint('ready', flush=True)\nsleep(600)"
    programs = {"blocked": blocked, "starved": "os.nice(5)\nprint('ready', flush=True)\nwhile True: pass"}
    programs |= {f"load {number}": "while True: pass" for number in range(8)}
    children: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, each in programs.items():
            said = None if name.startswith("load") else subprocess.PIPE
            child = children[name] = subprocess.Popen([sys.executable, "-c", core + each], stdout=said)
            if child.stdout is not None:
                assert child.stdout.readline() == b"ready\n"
        time.sleep(3)
        before = {name: process_tree.threads(each.pid) for name, each in children.items()}
        time.sleep(3)
        for name, is_computing in (("starved", True), ("blocked", False)):
            after = process_tree.threads(children[name].pid)
            found = [watchdog._computes(each, before[name].get(thread), 3) for thread, each in after.items()]
            assert any(found) is is_computing, (name, before[name], after)
    finally:
        for each in children.values():
            each.kill()
            each.communicate()


def test_the_network_counts_where_a_rank_may_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now, received = 100.0, 0
    monkeypatch.setattr(position.time, "monotonic", lambda: now)
    monkeypatch.setattr(position.process_tree, "usage", lambda: (5.0, 1000))
    monkeypatch.setattr(position, "network_bytes", lambda: received)
    monkeypatch.setattr(position, "main_stack", lambda: frames("/env/torch/utils/data/dataloader.py"))
    sampler = Sampler(Cluster.detect({}), steps=lambda: 3, collectives=CollectiveLog())
    sampler.sample({})
    now = 101.0
    sampler.sample({})
    now = 110.0
    assert sampler.sample({}).still == 9.0
    now, received = 111.0, 2**21
    assert sampler.sample({}).still == 0.0
    monkeypatch.setattr(position, "main_stack", lambda: frames("/job/train.py"))
    now, received = 112.0, 2**22
    sampler.sample({})
    now, received = 120.0, 2**23
    assert sampler.sample({}).still == 8.0


def test_the_bytes_of_the_network_are_read_without_those_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    head = "Inter-|   Receive\n face |bytes    packets\n"
    rows = "    lo: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n  eth0:100 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda _: head + rows)
    assert position.network_bytes() == 120


@pytest.mark.parametrize("end", ["ended", "failed", "unwatched"])
def test_the_last_sample_tells_how_the_script_ended(end: str) -> None:
    assert Sampler(Cluster.detect({}), steps=lambda: 3, collectives=CollectiveLog()).sample({}, end=end).phase == end
