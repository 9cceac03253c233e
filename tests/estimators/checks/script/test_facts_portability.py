"""What works on this machine only is a warning, and what the script chooses when it starts is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.checks.script.facts import ScriptFacts
from estimators.source_code import SourceCode

HERE = Path(__file__).resolve()
HOSTS = {"has_gpus": False, "shares_checkpoints": True}


def warned(tmp_path: Path, script: str, hosts: dict[str, bool] = HOSTS, **modules: str) -> list[str]:
    (tmp_path / "train.py").write_text(script)
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    source = SourceCode.of({"entry_point": "train.py", "source_dir": str(tmp_path)})
    problems = list(ScriptFacts.of(source.modules, {}).check(channels=(), own_image=False, **{**HOSTS, **hosts}))
    assert all(problem.severity == "warning" for problem in problems)
    return [str(problem) for problem in problems]


def test_a_path_of_this_machine_is_told_with_its_line(tmp_path: Path) -> None:
    (told,) = warned(tmp_path, "import data\n", data=f"import os\nROOT = {str(HERE)!r}\n")
    assert f"{tmp_path / 'data.py'}, line 2, names {HERE}, which is on this machine" in told


def test_a_path_within_a_text_with_values_is_told(tmp_path: Path) -> None:
    assert len(warned(tmp_path, f"name = 'a'\nopen(f'{HERE.parent}/{{name}}')\n")) == 1


@pytest.mark.parametrize(
    "path", ["/opt/ml/input", "/tmp", "/dev/null", "/usr/bin/env", "/etc/hosts", "/proc", "/", "/no/such/place", "a/b"]
)
def test_a_path_of_every_host_or_of_none_is_not_told(tmp_path: Path, path: str) -> None:
    assert warned(tmp_path, f"open({path!r})\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "model.cuda()",
        "torch.cuda.set_device(0)",
        "model.to('cuda')",
        "model.to(device='cuda:0')",
        "device = torch.device('cuda')",
        "torch.load('x', map_location='cuda')",
        "for batch in data:\n        batch = batch.cuda()",
        "Net().train().cuda()",
    ],
)
def test_a_call_that_needs_a_gpu_is_told_for_hosts_without(tmp_path: Path, line: str) -> None:
    script = f"import torch\n\ndef main():\n    {line}\n\nif __name__ == '__main__':\n    main()\n"
    (told,) = warned(tmp_path, script)
    assert "and the job's hosts have no GPU. Use trainer.device" in told
    assert warned(tmp_path, script, {"has_gpus": True}) == []


@pytest.mark.parametrize(
    "line",
    [
        "if torch.cuda.is_available():\n        model.cuda()",
        "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "device = torch.cuda.is_available() and torch.device('cuda')",
        "if not torch.cuda.is_available():\n        return\n    model.cuda()",
        "try:\n        model.cuda()\n    except RuntimeError:\n        pass",
        "move = lambda: model.cuda()",
        "model.to('cpu')",
        "print('cuda')",
        "def unused():\n        model.cuda()",
    ],
)
def test_a_call_that_the_script_chooses_is_not_told(tmp_path: Path, line: str) -> None:
    assert (
        warned(tmp_path, f"import torch\n\ndef main():\n    {line}\n\nif __name__ == '__main__':\n    main()\n") == []
    )


RUN = "import smddp\ndef main(job):\n    trainer.loader(data, batch_size=8{})\n{}"


@pytest.mark.parametrize(
    ("options", "call", "count"),
    [
        (", num_workers=2", "smddp.run(main)\n", 1),
        (", num_workers=config.workers", "smddp.run(main)\n", 1),
        (", num_workers=0", "smddp.run(main)\n", 0),
        ("", "smddp.run(main)\n", 0),
        (", num_workers=2", "if __name__ == '__main__':\n    smddp.run(main)\n", 0),
    ],
)
def test_an_unguarded_run_is_told_if_there_are_workers(tmp_path: Path, options: str, call: str, count: int) -> None:
    told = warned(tmp_path, RUN.format(options, call))
    assert len(told) == count
    assert all("line 4, calls smddp.run unguarded" in each and 'if __name__ == "__main__":' in each for each in told)


@pytest.mark.parametrize(
    "before",
    [
        "x = 1\nif x == 0: pass\n" + "".join(f"elif x == {number}: pass\n" for number in range(1500)),
        f"x = {'+'.join(['y'] * 950)}\n",
    ],
    ids=["branches", "sum"],
)
def test_a_deep_script_is_judged(tmp_path: Path, before: str) -> None:
    assert len(warned(tmp_path, f"{before}import torch\ntorch.cuda.set_device(0)\n")) == 1


@pytest.mark.parametrize(
    "call", ["smddp.Sharded(wrap=(Block,))", "smddp.Sharded.from_job(job, wrap=(Block,))", "fully_shard(model)"]
)
def test_a_model_divided_among_hosts_needs_a_place_that_all_reach(tmp_path: Path, call: str) -> None:
    script = f"import smddp\nfrom torch.distributed.fsdp import fully_shard\n\nparallel = {call}\n"
    (told,) = warned(tmp_path, script, {"shares_checkpoints": False})
    assert "train.py, line 4, divides a model among the job's hosts, and no place for checkpoints is one" in told
    assert warned(tmp_path, script) == []
