"""A Trainer that divides no weights is warned of before its job is sent, and an image that is too old is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.checks.script import model_parallel
from estimators.source_code import SourceCode


def found(
    tmp_path: Path, script: str, aws_version: str | None = None, *, degree: int = 1, **modules: str
) -> list[tuple[str, str]]:
    (tmp_path / "train.py").write_text(script)
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    source = SourceCode.of({"entry_point": "train.py", "source_dir": str(tmp_path)})
    parameters = {"tensor_parallel_degree": degree}
    problems = model_parallel.check(source.modules, parameters, aws_version=aws_version)
    return [(problem.severity, problem.found) for problem in problems]


@pytest.mark.parametrize(
    "script",
    [
        "import smddp\nsmddp.Trainer(job, model, optimizer)\n",
        "from smddp import Trainer as T\nT(job, model, optimizer, ema=0.9)\n",
    ],
)
def test_a_trainer_that_divides_no_weights_is_told_with_its_line(tmp_path: Path, script: str) -> None:
    told = "line 2, makes a Trainer that divides no weights, and the job asks for modelparallel"
    for files in {"script": script}, {"script": "import training\n", "training": script}:
        ((severity, text),) = found(tmp_path, **files)
        assert (severity, told in text) == ("warning", True), text


@pytest.mark.parametrize(
    "script",
    [
        "import smddp\nsmddp.Trainer(job, model, optimizer, parallel=chosen)\n",
        "import smddp\nsmddp.Trainer(job, model, optimizer, ddp=chosen)\n",
        "import smddp\nsmddp.Trainer(job, model, optimizer, **options)\n",
        "import smddp\nfrom torch.distributed.fsdp import fully_shard\nfully_shard(model)\nsmddp.Trainer(job, model)\n",
        "import torch.sagemaker as tsm\ntsm.init()\nmodel = tsm.transform(model)\n",
        "import lightning\nlightning.Trainer()\n",
    ],
)
def test_a_script_that_may_divide_its_weights_is_not_complained_of(tmp_path: Path, script: str) -> None:
    assert found(tmp_path, script) == []


@pytest.mark.parametrize("call", ["smddp.Sharded(wrap=(Block,))", "smddp.Sharded.from_job(job, wrap=(Block,))"])
def test_an_image_of_aws_whose_pytorch_is_too_old_for_sharded_is_an_error(tmp_path: Path, call: str) -> None:
    script = f"import smddp\nsmddp.Trainer(job, model, optimizer, parallel={call})\n"
    ((severity, text),) = found(tmp_path, script, "2.5.1")
    assert severity == "error"
    assert "the SDK takes AWS's image of SMP, with PyTorch 2.5.1, and smddp.Sharded needs 2.6" in text
    for other in "2.6.0", "2.10", None, "newest":
        assert found(tmp_path, script, other) == []


def test_a_degree_that_from_job_refuses_is_an_error(tmp_path: Path) -> None:
    script = "import smddp\nsmddp.Trainer(job, model, parallel=smddp.Sharded.from_job(job, wrap=(Block,)))\n"
    ((severity, text),) = found(tmp_path, script, degree=2)
    assert (severity, text) == (
        "error",
        "asks for tensor_parallel_degree=2, and the script's smddp.Sharded.from_job divides weights alone",
    )
    assert found(tmp_path, script) == found(tmp_path, "import torch.sagemaker\n", degree=2) == []
