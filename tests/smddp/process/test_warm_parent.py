"""A rank that is forked from a warm parent behaves as one that is started, or is started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from smddp.process.warm_parent import ForkedProcess

# The driver adopts orphans, which lasts for the life of a process. So it is a process of its own.
DRIVER = """
import json, os, sys
from pathlib import Path
from smddp.process.output_lines import ChildStreams
from smddp.process.warm_parent import ForkedProcess, WarmParent

way, modules, extras, differing, *command = json.loads(sys.argv[1])
if "IGNORE_HANGUP" in os.environ:
    import signal
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
if "OPEN_FILES" in os.environ:
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(os.environ["OPEN_FILES"]),) * 2)
environ = {**os.environ, "SAME": "1"}
of_rank = {**environ, **differing}
if way == "cold":
    import subprocess
    process = subprocess.Popen(command, env=of_rank, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
else:
    parent = WarmParent.start(environ, command_bytes=sum(len(each) + 1 for each in command))
    script = Path(command[1]).parent
    parent.prepare(script, modules=modules, extras=extras, environ=environ, of_ranks=["OF_RANK"])
    problem, note = parent.await_ready()
    print(json.dumps({"problem": problem, "note": note}))
    if problem:
        sys.exit()
    streams = ChildStreams()
    process = parent.fork(command, of_rank, given=dict(enumerate(streams.ends, 1)))
    streams.close_ends()
    if not isinstance(process, ForkedProcess):
        print(json.dumps({"problem": process}))
        sys.exit()
    process.stdout, process.stderr = streams.stdout, streams.stderr
out, error = process.stdout.read().decode(), process.stderr.read().decode()
print(json.dumps({"code": process.wait(), "out": out, "error": error}))
if way != "cold":
    parent.close()
"""


def drive(
    directory: Path, way: str, script: str, *arguments: str, modules: list[str], extras: list[str], **differing: str
) -> list[Any]:
    """Return what the driver says of a script, a JSON value a line."""
    (directory / "train.py").write_text(script)
    command = [sys.executable, *(arguments or ["train.py"])]
    told = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps([way, modules, extras, differing, *command])],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [json.loads(line) for line in told.stdout.splitlines()]


def warm(directory: Path, script: str, *arguments: str, **differing: str) -> dict[str, Any]:
    """Return the code and the output of a forked rank."""
    ready, ended = drive(directory, "warm", script, *arguments, modules=["decimal"], extras=["csv"], **differing)
    assert ready == {"problem": "", "note": ""}
    return dict(ended)


def cold(directory: Path, script: str, *arguments: str, **differing: str) -> dict[str, Any]:
    """Return the code and the output of a started rank."""
    return dict(drive(directory, "cold", script, *arguments, modules=[], extras=[], **differing)[0])


WORLD = """
import json, os, signal, sys, threading
main = sys.modules["__main__"]
names = sorted(set(vars(main)) - {"__annotations__"})
import multiprocessing
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "path": sys.path, "names": names, "spec": repr(__spec__),
    "package": __package__, "cached": __cached__, "modules": sorted(each for each in sys.modules if "pack" in each),
    "loader": type(__loader__).__name__, "executable": sys.executable, "directory": os.getcwd(),
    "environ": dict(os.environ), "initial": sorted(open("/proc/self/environ").read().strip("\\0").split("\\0")),
    "command": open("/proc/self/cmdline").read().strip("\\0").split("\\0"), "comm": open("/proc/self/comm").read(),
    "handlers": [repr(signal.getsignal(each)) for each in sorted(signal.valid_signals())],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "streams": [(each.encoding, each.errors, each.line_buffering, each.write_through, each.fileno(), each.isatty())
                for each in (sys.stdout, sys.stderr)],
    "files": sorted(os.listdir("/proc/self/fd"))[:3] + [len(os.listdir("/proc/self/fd"))],
    "thread": threading.current_thread() is threading.main_thread(), "threads": threading.active_count(),
    "process": multiprocessing.current_process().name, "method": multiprocessing.get_start_method(),
    "is_parent": b"-c" in open(f"/proc/{os.getppid()}/cmdline", "rb").read(), "group": os.getpgid(0) == os.getpid(),
    "flags": str(sys.flags), "dies": __import__("ctypes").CDLL(None).prctl(2, __import__("ctypes").byref(
        number := __import__("ctypes").c_int()), 0, 0, 0) or number.value,
}, sort_keys=True))
"""


@pytest.mark.parametrize("variables", [{}, {"PYTHONUNBUFFERED": ""}, {"RANK": "1", "SAME": "2", "LONG": "x" * 9000}])
def test_a_forked_rank_sees_the_world_of_a_started_one(tmp_path: Path, variables: dict[str, str]) -> None:
    forked, started = warm(tmp_path, WORLD, **variables), cold(tmp_path, WORLD, **variables)
    assert json.loads(forked.pop("out")) == json.loads(started.pop("out"))
    assert forked == started == {"code": 0, "error": ""}


@pytest.mark.parametrize("limit", ["64", "256"])
def test_a_rank_is_forked_if_few_files_may_be_open(tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPEN_FILES", limit)
    assert warm(tmp_path, "print('said')") == {"code": 0, "out": "said\n", "error": ""}


def test_an_exit_code_that_something_else_has_reaped_is_no_success() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert ForkedProcess(child.pid).poll() == 255


OF_MODULES = {
    "world": WORLD,
    "error": "def f():\n    1 / 0\nf()\n",
    "code": "import sys; sys.exit(4)",
    "relative import": "from . import beside\nfrom .beside import __name__ as name\nprint(beside.__name__, name)\n",
    "pickle": "import pickle\nclass A: pass\nprint(pickle.dumps(A()), type(pickle.loads(pickle.dumps(A()))) is A)\n",
    "spawned": "import multiprocessing\nclass A: pass\ndef f(a):\n    print(__name__, type(a) is A, __spec__.name)\n"
    "if __name__ == '__main__':\n    child = multiprocessing.get_context('spawn').Process(target=f, args=(A(),))\n"
    "    child.start()\n    child.join()\n    print(child.exitcode)\n",
}


@pytest.mark.parametrize("script", OF_MODULES.values(), ids=OF_MODULES)
@pytest.mark.parametrize("module", ["train", "package.train", "package", "regular.inner.train", "nowhere"])
def test_a_forked_module_does_what_a_started_one_does(tmp_path: Path, script: str, module: str) -> None:
    for directory in ("package", "regular/inner"):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "beside.py").touch()
        for name in ("train.py", "__main__.py"):
            (tmp_path / directory / name).write_text(script)
    (tmp_path / "regular" / "__init__.py").write_text("from .inner import train\n")  # of which Python warns
    forked, started = (way(tmp_path, script, "-m", module, "an argument") for way in (warm, cold))
    for each in (forked, started):
        each.update({name: re.sub(r"0x[0-9a-f]+", "ADDRESS", each[name]) for name in ("out", "error")})
    assert forked == started


def test_a_module_that_an_import_has_run_is_not_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that imported it would refer to another module than the one that ``sys.modules`` gets."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "beside.py").write_text("import jobs")
    (tmp_path / "elsewhere" / "jobs.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    told = drive(tmp_path, "warm", "", "-m", "jobs", modules=["beside"], extras=[])
    assert told[1:] == [{"problem": "an import has imported jobs, which the ranks run"}]


ENDS = {
    "code": "import sys; print('out'); sys.exit(3)",
    "large code": "import sys; sys.exit(256 + 5)",
    "message": "import sys; sys.exit('no data')",
    "error": "def f(x):\n    return 1 / x\nprint('before')\nf(0)\n",
    "chained error": "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('b') from error\n",
    "syntax error": "x = (\n",
    "hook": "import sys\nsys.excepthook = lambda *told: print('hook', told[1])\nraise ValueError(1)\n",
    "interrupt": "import os, time\nprint('x', flush=True)\nos.kill(os.getpid(), 2)\ntime.sleep(9)\n",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(9)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "aborted": "import os; os.abort()",
    "ended": "import os; os._exit(7)",
    "exit functions": "import atexit\natexit.register(print, 'one')\natexit.register(print, 'two')\nprint('end')\n",
    "error of an exit function": "import atexit\ndef f():\n    1 / 0\natexit.register(f)\n",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()\n",
    "own object": "class A:\n    def __del__(self):\n        print('freed')\na = A()\nprint('end')\n",
    "kept by a module": "import atexit, json\nclass A: pass\njson.kept = A()\n"
    "atexit.register(lambda: print(type(json.kept).__name__))\n",
    "lost output": "import os, sys\nos.close(1)\nprint('lost')\n",
    "argument": "import sys; print(sys.argv, sys.stdin.read())",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)\n",
    "spawned": "import multiprocessing\ndef f(queue):\n    queue.put(__name__)\n"
    "if __name__ == '__main__':\n    context = multiprocessing.get_context('spawn')\n    queue = context.Queue()\n"
    "    child = context.Process(target=f, args=(queue,))\n    child.start()\n    print(queue.get(), child.join())\n",
    "forked": "import multiprocessing\ndef f(queue):\n    queue.put(__name__)\n"
    "if __name__ == '__main__':\n    context = multiprocessing.get_context('fork')\n    queue = context.Queue()\n"
    "    child = context.Process(target=f, args=(queue,))\n    child.start()\n    print(queue.get(), child.join())\n",
    "open files": "file = open('kept', 'w')\nfile.write('text')\nimport beside\nbeside.file = open('kept', 'a')\n"
    "beside.file.write('more')\nprint('end')\n",
    "open file at an error": "def f():\n    file = open('kept', 'w')\n    file.write('text')\n    1 / 0\nf()\n",
    "dead proxy": "import json, weakref\nclass A: pass\njson.kept = weakref.proxy(A())\nprint('end')\n",
    "daemon thread": "import threading, time\ndef f():\n    while True:\n        time.sleep(0.001)\n"
    "threading.Thread(target=f, daemon=True).start()\ntime.sleep(0.1)\nprint('end')\n",
    "annotations": "import dataclasses\n@dataclasses.dataclass\nclass A:\n    a: int = 1\n"
    "print([each.type for each in dataclasses.fields(A)])\n",
    "builtins": "print(type(__builtins__).__name__)\n",
    "original arguments": "import sys; print(sys.orig_argv)\n",
    "import beside": "import beside; print(beside.__name__, __import__('os').path.basename(beside.__file__))",
    "missing import": "import a_module_that_is_not_there\n",
    "program": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=1))\n",
    "signals of a program": "import subprocess\nprint(subprocess.run(['grep', 'Sig[BIC]', '/proc/self/status'],"
    " capture_output=True).stdout)\n",
}


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("script", ENDS.values(), ids=ENDS)
def test_a_forked_rank_does_what_a_started_one_does(
    tmp_path: Path, script: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    (tmp_path / "beside.py").write_text("")
    forked = warm(tmp_path, script)
    kept = tmp_path / "kept"
    forked["kept"] = kept.read_text() if kept.exists() else ""
    kept.unlink(missing_ok=True)
    started = cold(tmp_path, script)
    started["kept"] = kept.read_text() if kept.exists() else ""
    for each in (forked, started):
        each["error"] = re.sub(r"0x[0-9a-f]+", "ADDRESS", each["error"])
    assert forked == started


def test_ranks_draw_different_random_numbers(tmp_path: Path) -> None:
    script = "import random, numpy, torch, uuid\n"
    script += "print(random.random(), numpy.random.random(), uuid.uuid4(), torch.rand(1), torch.initial_seed())"
    drawn = []
    for _ in range(2):
        ready, ended = drive(tmp_path, "warm", script, modules=["numpy", "random", "torch"], extras=[])
        assert ready == {"problem": "", "note": ""}
        drawn.append(ended["out"].split())
    assert all(one != other for one, other in zip(*drawn, strict=True))


FORKS = """
import os, sys, time
from pathlib import Path
from smddp.process.warm_parent import WarmParent

parent = WarmParent.start(os.environ, command_bytes=99)
parent.prepare(Path(), modules=[], extras=[], environ=os.environ)
assert parent.await_ready() == ("", "")
"""


def test_a_rank_gets_descriptors_by_their_numbers_whatever_these_are(tmp_path: Path) -> None:
    script = "import os; print([os.read(number, 9) for number in (256, 257, 258, 300)], flush=True)"
    (tmp_path / "train.py").write_text(script)
    program = """
given = {}
for number in (258, 257, 300, 256):
    reading, writing = os.pipe()
    os.write(writing, str(number).encode())
    given[number] = os.dup2(reading, {258: 256, 257: 258, 300: 257, 256: 300}[number])
print(parent.fork([sys.executable, "train.py"], os.environ, given=given).wait())
"""
    told = subprocess.run(
        [sys.executable, "-c", FORKS + program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert told.stdout.splitlines() == ["[b'256', b'257', b'258', b'300']", "0"], told.stderr


def test_a_rank_of_which_nobody_has_heard_never_runs(tmp_path: Path) -> None:
    """Whoever asked for it may start it anew."""
    (tmp_path / "train.py").write_text("print('runs twice')")
    program = """
parent._read = lambda: {"problem": "the answer was lost"}
print(parent.fork([sys.executable, "train.py"], os.environ), flush=True)
while Path(f"/proc/self/task/{os.getpid()}/children").read_text().split() != [str(parent.pid)]:
    os.waitpid(-1, os.WNOHANG)
    time.sleep(0.01)
"""
    told = subprocess.run(
        [sys.executable, "-c", FORKS + program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert told.stdout == "the answer was lost\n", told.stderr


def test_an_import_makes_its_directory_in_each_rank_and_not_where_only_ranks_have_one(tmp_path: Path) -> None:
    """As torch._dynamo does: /opt/ml/tmp is a host's alone."""
    (tmp_path / "making.py").write_text(
        "import os, tempfile\nPLACE = os.path.join(tempfile.gettempdir(), 'a', 'b')\n"
        "os.makedirs(PLACE, exist_ok=True)\nos.makedirs('elsewhere', exist_ok=True)\n"
    )
    (tmp_path / "train.py").write_text("import making, os; print(os.path.isdir(making.PLACE), making.PLACE)")
    program = """
place = Path("ours/tmp").absolute()
of_rank = {**os.environ, "TMPDIR": str(place)}
parent = WarmParent.start(of_rank, command_bytes=99)
parent.prepare(Path(), modules=["making"], extras=[], environ=of_rank)
assert parent.await_ready() == ("", "")
print(Path("ours").exists(), Path("elsewhere").exists(), flush=True)
place.mkdir(parents=True)
print(parent.fork([sys.executable, "train.py"], of_rank).wait())
"""
    told = subprocess.run(
        [sys.executable, "-c", FORKS + program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])},
    )
    assert told.stdout.splitlines() == ["False True", f"True {tmp_path}/ours/tmp/a/b", "0"], told.stderr


def test_a_parent_that_is_closed_while_it_imports_forks_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(30)")
    program = """
import threading
parent.prepare(Path(), modules=["slow"], extras=[], environ=os.environ)
told = []
threads = [threading.Thread(target=lambda: told.append(parent.await_ready()[0])) for _ in range(4)]
for thread in threads:
    thread.start()
time.sleep(0.3)
parent.close()
for thread in threads:
    thread.join()
print({*told, parent.fork([sys.executable, "train.py"], os.environ)})
"""
    told = subprocess.run(
        [sys.executable, "-c", FORKS + program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=25,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])},
    )
    assert told.stdout == "{'the warm parent has ended, or does not answer'}\n", told.stderr


IMPORTS = {
    "a variable of the rank": ("import os; RANK = os.environ.get('RANK')", "the import of beside reads RANK"),
    "in another way": ("import os; RANK = os.getenv('RANK', '0')", "the import of beside reads RANK"),
    "and in another": ("import os; RANK = 'RANK' in os.environ", "the import of beside reads RANK"),
    "a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        "an import started a thread",
    ),
    "a file": ("file = open('/etc/hostname')", "an import opened /etc/hostname"),
    "a directory": ("import os; os.chdir('/')", "the import of beside changes the working directory"),
    "a seed": ("import random; random.seed(42)", "the import of beside changes the state of random"),
    "a stream": (
        "import io, sys; KEPT, sys.stdout = sys.stdout, io.TextIOWrapper(sys.stdout.buffer, write_through=True)",
        "the import of beside changes sys.stdout",
    ),
    "a socket": ("import socket; file = socket.socket()", "an import opened socket:"),
}


@pytest.mark.parametrize(("imported", "why"), IMPORTS.values(), ids=IMPORTS)
@pytest.mark.parametrize("extra", [False, True])
def test_an_import_that_a_fork_would_not_repeat_is_left_to_the_rank(
    tmp_path: Path, imported: str, why: str, extra: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "beside.py").write_text(imported)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    names: dict[str, Any] = {"modules": [] if extra else ["beside"], "extras": ["beside"] if extra else []}
    told = drive(tmp_path, "warm", "import beside, sys; print('ran')", **names, RANK="1")
    problems = [each.get("problem") or each.get("note") or "" for each in told]
    assert any(each.startswith(why) for each in problems), told
    if extra and "reads" not in why:
        assert told[0]["problem"] == ""
        assert told[1]["out"] == "ran\n"  # without the module


def test_an_extra_import_that_ends_the_process_leaves_the_parent_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "beside.py").write_text("import sys; sys.exit()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    ready, ended = drive(tmp_path, "warm", "print('ran')", modules=["csv"], extras=["beside"], RANK="1")
    assert ready == {"problem": "", "note": "an import of beside ended the process"}
    assert ended["out"] == "ran\n"


def test_a_variable_of_each_rank_that_an_import_reads_is_known_before_the_first_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "beside.py").write_text("import os; RANK = os.environ.get('OF_RANK')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    script = "import beside; print(beside.RANK)"
    ready, ended = drive(tmp_path, "warm", script, modules=["csv"], extras=["beside"], OF_RANK="3")
    assert ready == {"problem": "", "note": "the import of beside reads OF_RANK, which each rank has for itself"}
    assert ended["out"] == "3\n"


def test_what_an_import_sets_in_the_environment_each_rank_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    text = "import os; os.environ['SET'] = '1'; os.environ.pop('SAME', None)"
    (tmp_path / "elsewhere" / "beside.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    script = "import beside, os; print(os.environ.get('SET'), os.environ.get('SAME'), os.environ['RANK'])"
    _, ended = drive(tmp_path, "warm", script, modules=["beside"], extras=[], RANK="1")
    assert ended["out"] == cold(tmp_path, script, RANK="1")["out"] == "1 None 1\n"


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IGNORE_HANGUP", "1")
    script = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); print('lives', signal.getsignal(signal.SIGHUP))"
    assert warm(tmp_path, script) == cold(tmp_path, script)


def test_a_directory_that_can_not_be_read_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "decimal").mkdir(mode=0)
    (tmp_path / "other").mkdir(mode=0)
    assert warm(tmp_path, "print(1)")["out"] == "1\n"


def test_a_module_beside_the_script_that_replaces_an_imported_one_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "decimal.py").write_text("NAME = 'own'")
    told = drive(tmp_path, "warm", "import decimal; print(decimal.NAME)", modules=["decimal"], extras=[])
    assert told == [{"problem": f"{tmp_path}/decimal.py replaces the module decimal", "note": ""}]


def test_the_parent_outlives_a_stop_and_ends_with_its_own_parent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    program = (
        "import pathlib, time\nfrom smddp.process.warm_parent import WarmParent\n"
        "parent = WarmParent.start({}, command_bytes=99)\n"
        "parent.prepare(pathlib.Path(), modules=[], extras=['csv'], environ={})\n"
        "parent.await_ready()\nprint(parent.pid, flush=True)\ntime.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    parent = int(owner.stdout.readline())
    children = Path(f"/proc/{parent}/task/{parent}/children")
    child = int(children.read_text())
    for each in (parent, child):
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            os.kill(each, signum)
    time.sleep(0.3)
    assert Path(f"/proc/{parent}/stat").read_text().split()[2] in ("S", "R", "D")
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{each}/cmdline").exists() for each in (parent, child)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    owner.stdout.close()


@pytest.mark.parametrize("extras", [[], ["csv"]])
def test_the_parent_ends_without_a_word_if_its_owner_closes_before_it_reads_the_answer(
    tmp_path: Path, extras: list[str]
) -> None:
    program = (
        "import os, pathlib, select\nfrom smddp.process.warm_parent import WarmParent\n"
        "parent = WarmParent.start(dict(os.environ), command_bytes=99)\n"
        f"parent.prepare(pathlib.Path(), modules=[], extras={extras}, environ=dict(os.environ))\n"
        "select.select([parent._connection], [], [])\n"
        "parent._connection.close()\n"
        "print(parent._process.wait())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
