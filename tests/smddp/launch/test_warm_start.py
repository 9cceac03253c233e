"""Which ranks are forked from a warm parent, and what a restart and a lost parent mean for them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from smddp.process.process_tree import started
from smddp.script_syntax import find_entry_point
from smddp.script_syntax.warm_start import Imports, choose_imports


def chosen(directory: Path, text: str, name: str = "train.py", **environ: str) -> Imports | None:
    (directory / name).write_text(text)
    return choose_imports(find_entry_point(directory / name).modules, environ)


def test_a_bundle_that_brings_smddp_changes_nothing(tmp_path: Path) -> None:
    """A job's code may have smddp beside the script: hundreds of modules, which would be read at each start."""
    text = "import torch\nimport smddp\ntorch.optim.SGD\n"
    alone = chosen(tmp_path, text)
    (tmp_path / "smddp").mkdir()
    (tmp_path / "smddp" / "__init__.py").write_text("import os\nimport yaml\nos.environ['A'] = 'b'\n")
    assert chosen(tmp_path, text) == alone
    assert alone is not None
    assert "torch._dynamo" in alone.modules


@pytest.mark.parametrize(
    ("text", "extras"),
    [
        ("import torch\nfrom torch.optim import SGD\nimport numpy as np\n", ["torch", "torch.optim", "numpy"]),
        ("import torch\nimport data\nimport yaml\n", ["torch", "torchvision.transforms", "yaml"]),
        ("import os, torch, yaml\n", ["torch", "yaml"]),
        ("try:\n    import apex\nexcept ImportError:\n    apex = None\nimport torch\n", ["torch"]),
        (
            "import torch\ndef unused():\n    import sklearn\nX = 3\nclass A:\n    a = 1\nimport yaml\n",
            ["torch", "yaml"],
        ),
        ("import smddp\nimport torch\nif __name__ == '__main__':\n    import yaml\n", ["smddp", "torch", "yaml"]),
        # What may change a later import ends the list.
        ("import torch\nimport os\nos.environ['HF_HOME'] = 'x'\nimport transformers\n", ["torch"]),
        ("import torch\nimport sys\nsys.path.insert(0, 'vendored')\nimport yaml\n", ["torch"]),
        ("import torch\nif torch.cuda.is_available():\n    import apex\nimport yaml\n", ["torch"]),
        ("import torch\nfor name in ():\n    pass\nimport yaml\n", ["torch"]),
        ("import torch\nimport patches\nimport yaml\n", ["torch"]),
    ],
)
def test_what_every_run_imports_before_anything_else_is_imported_before(
    tmp_path: Path, text: str, extras: list[str]
) -> None:
    (tmp_path / "data.py").write_text("import torchvision.transforms as transforms\nSIZE = 3\n")
    (tmp_path / "patches.py").write_text("import torch\ntorch.set_num_threads(1)\n")
    imports = chosen(tmp_path, text)
    assert imports is not None
    assert imports.extras == extras
    assert set(imports.modules) >= {"torch", "torch.distributed"}
    assert imports.not_before == ({"torch._dynamo"} if "environ" in text else set())


@pytest.mark.parametrize(
    ("text", "extras"),
    [
        ("import torch\nimport mylib.config\nimport yaml\n", ["torch"]),  # it is read, and parses arguments
        ("import torch\nfrom mylib import names\nimport yaml\n", ["torch", "yaml"]),
        ("import torch\nimport built\nimport yaml\n", ["torch"]),  # it can't be read
        ("import torch\nimport edited\nimport yaml\n", ["torch"]),  # an editable installation
        ("import smddp\nimport edited\nimport torch\n", None),  # it may set what torch reads
    ],
)
def test_code_of_the_users_that_is_no_installed_package_is_left_to_each_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, extras: list[str] | None
) -> None:
    """Such an import may read the arguments, seed random numbers or look for a checkpoint."""
    for name, content in {
        "src/mylib/__init__.py": "",
        "src/mylib/config.py": "import argparse\nARGS = argparse.ArgumentParser().parse_known_args()\n",
        "src/mylib/names.py": "SIZE = 3\n",
        "src/built.cpython-311.so": "",
        "elsewhere/edited.py": "",
        "code/train.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    imports = chosen(tmp_path / "code", text, PYTHONPATH=str(tmp_path / "src"))
    assert (None if imports is None else imports.extras) == extras


def test_a_package_that_wants_to_be_first_is(tmp_path: Path) -> None:
    imports = chosen(tmp_path, "import comet_ml\nimport torch\n")
    assert imports is not None
    assert imports.modules[:2] == ["comet_ml", "torch"]
    assert imports.extras == []
    assert "torch" in imports.not_before


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("import torch\nprint(torch.ones(1))\n", "torch._dynamo"),
        ("import os, torch\nos.environ['TORCH_LOGS'] = 'dynamo'\ntorch.optim.SGD([])\n", "torch._dynamo"),
        ("import torch.optim\n", "smddp.training"),
    ],
)
def test_what_the_script_does_not_use_is_not_imported(tmp_path: Path, text: str, without: str) -> None:
    imports = chosen(tmp_path, text)
    assert imports is not None
    assert without not in imports.modules


@pytest.mark.parametrize(
    ("name", "text", "environ"),
    [
        ("train.py", "print(1)\n", {}),
        ("train.py", "import torch\n", {"SMDDP_WARM": "0"}),
        ("train.sh", "import torch\n", {}),
        ("train.py", "import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\n", {}),
        ("train.py", "import os, smddp\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\n", {}),
        ("train.py", "from gevent import monkey\nmonkey.patch_all()\nimport torch\n", {}),
        ("train.py", "import torch (\n", {}),
    ],
)
def test_a_script_that_would_not_start_faster_has_no_parent(
    tmp_path: Path, name: str, text: str, environ: dict[str, str]
) -> None:
    assert chosen(tmp_path, text, name, **environ) is None


@pytest.mark.parametrize(
    ("files", "extras"),
    [
        ({"train.py": "import torch\nfrom . import data\nimport yaml\n"}, ["torch", "torchvision", "yaml"]),
        ({"train.py": "import torch\nimport jobs.data\n"}, ["torch", "torchvision"]),
        (
            {"__init__.py": "VERSION = '1'\nfrom jobs.data import SIZE\n", "train.py": "import torch\n"},
            ["torchvision", "torch"],
        ),
        ({"__init__.py": "import numpy\nprint()\nimport yaml\n", "train.py": "import torch\n"}, None),
        ({"__init__.py": "import torch\nprint()\nimport yaml\n", "train.py": "import numpy\n"}, ["torch"]),
    ],
)
def test_a_module_is_a_script_whose_packages_are_imported_first(
    tmp_path: Path, files: dict[str, str], extras: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    for name, text in {"__init__.py": "", "data.py": "import torchvision\nSIZE = 3\n", **files}.items():
        (tmp_path / "jobs" / name).write_text(text)
    imports = choose_imports(find_entry_point("jobs.train", module=True).modules, {})
    assert (None if imports is None else imports.extras) == extras


SCRIPT = """
import os, signal, subprocess, sys, torch
ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("rank", os.environ["RANK"], "attempt", ATTEMPT, "smddp.process.warm_program" in sys.modules, flush=True)
if ATTEMPT == "0" and os.environ["RANK"] == "1":
    if os.environ.get("LOSE_PARENT"):
        subprocess.run(["pkill", "-KILL", "-P", str(os.getppid()), "-f", "smddp.launch.torchrun"], check=True)
    os.kill(os.getpid(), signal.SIGKILL)
if ATTEMPT == "0":
    signal.pause()
"""


COMMAND: Sequence[str] = [
    *(sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", "--run-dir", "run"),
]


def run(
    directory: Path, text: str, *arguments: str, script: str = "train.py", **environ: str
) -> tuple[int, list[str], str]:
    """Return the exit code of `smddp run` with real Pythons, the script's lines in order, and the log."""
    (directory / "train.py").write_text(text)
    told = subprocess.run(
        [*COMMAND, *arguments, script],
        cwd=directory,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    return told.returncode, sorted(told.stdout.splitlines()), told.stderr


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("lost", "second"), [("", True), ("1", False)])
def test_a_restart_is_warm_unless_the_parent_is_lost(tmp_path: Path, lost: str, second: bool) -> None:
    code, lines, log = run(tmp_path, SCRIPT, "--max-restarts", "1", SMDDP_WARM="1", LOSE_PARENT=lost)
    assert code == 0, log
    assert lines == [
        f"rank {rank} attempt {attempt} {is_warm}" for rank in (0, 1) for attempt, is_warm in ((0, True), (1, second))
    ]
    assert ("the ranks start cold: the warm parent has ended" in log) == bool(lost)


MODULE = """
import json, multiprocessing, os, pathlib, pickle, signal, sys, time, torch
from . import data
RANK, ATTEMPT = os.environ.get("RANK"), os.environ.get("TORCHELASTIC_RESTART_COUNT")
class Sample: ...
def work(sample):
    print("worker", __name__, type(sample) is Sample, __spec__.name, flush=True)
if __name__ == "__main__":
    same = type(pickle.loads(pickle.dumps(Sample()))) is Sample
    names = sorted(set(globals()) - {"__annotations__"})
    seen = [sys.argv, sys.orig_argv, __name__, __package__, __file__, repr(__spec__), sys.path, data.NAME, same, names]
    print(f"rank {RANK} attempt {ATTEMPT}", json.dumps(seen), flush=True)
    open(f"warm-{RANK}-{ATTEMPT}-{int('smddp.process.warm_program' in sys.modules)}", "w").close()
    if (RANK, ATTEMPT) == ("1", "0"):
        while not list(pathlib.Path().glob("warm-0-0-*")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if ATTEMPT == "0":
        signal.pause()
    if RANK == "0":
        child = multiprocessing.get_context("spawn").Process(target=work, args=(Sample(),))
        child.start()
        child.join()
        sys.exit(child.exitcode)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_warm_module_is_a_cold_one_also_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    for name, text in {"__init__": "VERSION = '1'\n", "data": "NAME = __name__\n", "train": MODULE}.items():
        (tmp_path / "jobs" / f"{name}.py").write_text(text)
    told = []
    for warm in ("1", "0"):
        code, lines, log = run(tmp_path, "", "--max-restarts", "1", "-m", script="jobs.train", SMDDP_WARM=warm)
        assert code == 0, log
        assert "cold" not in log
        ended = {each.name: each.unlink() for each in tmp_path.glob("warm-*")}
        assert sorted(ended) == [f"warm-{rank}-{attempt}-{warm}" for rank in (0, 1) for attempt in (0, 1)]
        told.append([re.sub("0x[0-9a-f]+", "ADDRESS", line) for line in lines])
    assert told[0] == told[1]
    assert [line.partition(" [")[0] for line in told[0]] == [
        *(f"rank {rank} attempt {attempt}" for rank in (0, 1) for attempt in (0, 1)),
        "worker __mp_main__ True jobs.train",
    ]


OF_LAUNCHER = """
import os, torch
{}
import sys
print(os.environ["SM_CURRENT_HOST"], "smddp.launch.agent" in sys.modules, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "os.environ['OWN'] = '1'"])
def test_the_launchers_of_all_nodes_here_and_their_ranks_are_forked_from_one_parent(tmp_path: Path, text: str) -> None:
    """A rank has what its launcher had when that began: torchrun's agent, too, if the launcher was forked."""
    code, lines, log = run(tmp_path, OF_LAUNCHER.format(text), "--nodes", "2", SMDDP_WARM="1")
    assert code == 0, log
    assert "cold" not in log
    assert lines == ["algo-1 True", "algo-1 True", "algo-2 True", "algo-2 True"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_does_not_wait_for_the_imports(tmp_path: Path, signum: int) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "with" / "torch").mkdir(parents=True)
    text = "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(100)\n"
    (tmp_path / "with" / "torch" / "__init__.py").write_text(text)
    path = os.pathsep.join([str(tmp_path / "with"), str(Path(__file__).parents[3])])
    environ = {**os.environ, "PYTHONPATH": path, "SMDDP_WARM": "1"}
    process = subprocess.Popen(
        [*COMMAND, "train.py"], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (tmp_path / "importing").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signum)  # as a terminal does
    log = process.communicate(timeout=60)[1]
    assert process.returncode == 75, log
    assert log.count("stopped before the ranks began, exit code 75: this run saved nothing") == 1
    assert "cold" not in log


@pytest.mark.slow
@pytest.mark.parametrize("warm", ["1", "0"])
def test_a_launcher_that_is_killed_leaves_no_rank(tmp_path: Path, warm: str) -> None:
    text = "import os, signal, time, torch\nfrom pathlib import Path\nPath(f'rank-{os.getpid()}').touch()\n"
    text += "while len(list(Path().glob('rank-*'))) < 2: time.sleep(0.01)\n"
    text += "if os.environ['RANK'] == '1': os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(100)\n"
    code, _, log = run(tmp_path, text, SMDDP_WARM=warm)
    assert code == 137, log
    assert "Left behind by the programs that ran here" in log
    ranks = [int(each.name.removeprefix("rank-")) for each in tmp_path.glob("rank-*")]
    assert [started(rank) for rank in ranks] == [None, None]


@pytest.mark.slow
def test_ranks_start_cold_on_request(tmp_path: Path) -> None:
    code, lines, _ = run(tmp_path, SCRIPT, "--max-restarts", "1", SMDDP_WARM="0")
    assert code == 0
    assert all(line.endswith("False") for line in lines)
