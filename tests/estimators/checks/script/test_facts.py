"""A job is judged by the syntax of its script alone. What the syntax leaves open is silent."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from estimators.checks import channels
from estimators.checks.script.facts import ScriptFacts
from estimators.source_code import SourceCode

HEAD = """
from __future__ import annotations
import dataclasses, enum
from dataclasses import KW_ONLY, InitVar, dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Annotated, ClassVar, List, Literal, Optional, Union
import torch
import smddp
raise SystemExit("this script must not run here")
"""
RUN = """
def main(config: Config, job: smddp.Job) -> None: ...

if __name__ == "__main__":
    smddp.run(main)
"""
CONFIG = """
Kind = Literal["sgd", "adam"]
SIZES = [64, 32]

class Color(str, Enum):
    RED = "red"
    BLUE = auto()

@dataclass
class Model:
    depth: int
    width: int = 8

@dataclass
class Base:
    epochs: int
    lr: float = 1e-1

@dataclass(eq=False)
class Config(Base):
    names: ClassVar[int] = 3
    kind: Kind = "sgd"
    color: Color = Color.RED
    path: Path | None = None
    sizes: List[int] = field(default_factory=lambda: SIZES)
    pair: tuple[int, ...] = (1, 2)
    model: Model = field(default_factory=lambda: Model(depth=3))
    other: Model = make_model()
    dtype: torch.dtype = torch.float32
    clip: Optional[float] = None
    amp: bool = True
    note: str = ""
    every: "int | Literal['auto']" = 2**3
"""
READS = "import os, smddp\ndef main(job):\n    {}\nif __name__ == '__main__':\n    smddp.run(main)\n"


def faults(tmp_path: Path, script: str, given: dict[str, Any], **modules: str) -> str:
    """Return the errors of a job's hyperparameters, as one text."""
    (tmp_path / "train.py").write_text(script)
    for name, text in modules.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    source = SourceCode.of({"entry_point": "train.py", "source_dir": str(tmp_path)})
    facts = ScriptFacts.of(source.modules, {name: json.dumps(value) for name, value in given.items()})
    return "; ".join(map(str, facts.check(channels=(), has_gpus=True, shares_checkpoints=True, own_image=False)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 1, "epoch": 2}, "unknown hyperparameter 'epoch' (did you mean 'epochs'?)"),
        ({}, "missing epochs"),
        ({"epochs": "many"}, "epochs: expected int, found 'many'"),
        ({"epochs": 1.5}, "epochs: expected int, found 1.5"),
        ({"epochs": 1, "lr": "fast"}, "lr: expected float, found 'fast'"),
        ({"epochs": 1, "kind": "adamw"}, "kind: expected Literal['sgd', 'adam'], found 'adamw'"),
        ({"epochs": 1, "color": "GREEN"}, "color: expected Color (RED, BLUE), found 'GREEN'"),
        ({"epochs": 1, "clip": "x"}, "clip: expected float | None, found 'x'"),
        ({"epochs": 1, "sizes": [1, "x"]}, "sizes[1]: expected int, found 'x'"),
        ({"epochs": 1, "model.depht": 3}, "unknown hyperparameter 'model.depht' (did you mean 'model.depth'?)"),
        ({"epochs": 1, "model": {"width": 3}}, "missing model.depth"),
        ({"epochs": 1, "note": None}, "note: expected str, found None"),
        ({"epochs": 1, "note": True}, "note: expected str, found True"),
        ({"epochs": 1, "amp": "maybe"}, "amp: expected bool, found 'maybe'"),
        ({"epochs": 1, "names": 4}, "unknown hyperparameter 'names'"),
        ({"epochs": 1, "every": "often"}, "every: expected int | Literal['auto'], found 'often'"),
    ],
)
def test_the_dataclass_refuses_what_the_job_would_refuse(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    assert said in faults(tmp_path, HEAD + CONFIG + RUN, given)


@pytest.mark.parametrize(
    "given",
    [
        {"epochs": 1},
        {"epochs": "5", "lr": 1, "amp": "no", "kind": "adam", "color": "blue", "clip": None, "every": "auto"},
        {"epochs": 1, "model.width": 2, "path": "data", "sizes": [], "pair": [1], "dtype": "bfloat16"},
        {"epochs": 1, "other.depth": 3, "other.anything": 4},
        {"epochs": 1, "sagemaker_region": "us-east-1"},
        {"epochs": 1, "note": "null"},
    ],
)
def test_what_the_job_would_take_or_the_syntax_leaves_open_passes(tmp_path: Path, given: dict[str, Any]) -> None:
    assert faults(tmp_path, HEAD + CONFIG + RUN, given) == ""


@pytest.mark.parametrize(
    ("imports", "annotation"),
    [
        ("from settings import Config", "Config"),
        ("from settings import Config as Settings", "Settings"),
        ("import settings", "settings.Config"),
        ("from package import Config", "Config"),
        ("import package.inner as inner", "inner.Config"),
        ("from package.inner import Config", "'Config'"),
    ],
)
def test_a_dataclass_of_another_file_is_found(tmp_path: Path, imports: str, annotation: str) -> None:
    config = "from dataclasses import dataclass\n@dataclass\nclass Config:\n    lr: float = 0.1\n"
    script = f"import smddp\n{imports}\ndef main(config: {annotation}, job): ...\nsmddp.run(main)\n"
    given = {
        "settings.py": config,
        "package/__init__.py": "from .inner import Config\n",
        "package/inner.py": config,
    }
    assert "lr: expected float, found 'x'" in faults(tmp_path, script, {"lr": "x"}, **given)


@pytest.mark.parametrize(
    "config",
    [
        "from pydantic.dataclasses import dataclass\n@dataclass\nclass Config:\n    lr: float = 0.1\n",
        "@dataclass\nclass Config(Unknown):\n    lr: float = 0.1\n",
        "@register\n@dataclass\nclass Config:\n    lr: float = 0.1\n",
        "@dataclass\nclass Config:\n    lr: InitVar[float] = 0.1\n",
        "@dataclass\nclass Config:\n    lr: float\nif torch.cuda.is_available():\n    class Config: ...\n",
        "Config = dataclasses.make_dataclass('Config', ['lr'])\n",
        "Config = Other\nOther = Config\n",
        f"Config = Other\nother = a{'.f()' * 400}\n",
        "from settings import *\n",
        "@dataclass(**options)\nclass Config:\n    lr: float = 0.1\n",
    ],
)
def test_a_class_that_the_syntax_does_not_decide_is_not_judged(tmp_path: Path, config: str) -> None:
    settings = "from dataclasses import dataclass\n@dataclass\nclass Config: ...\n"
    assert faults(tmp_path, HEAD + config + RUN, {"lr": "x", "epoch": 2}, **{"settings.py": settings}) == ""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    sizes: list[int] = []\n", "use default_factory"),
        ("    lr: float = 0.1\n    epochs: int\n", "non-default argument 'epochs' follows default argument"),
    ],
)
def test_a_class_that_python_refuses_is_told(tmp_path: Path, body: str, said: str) -> None:
    assert said in faults(tmp_path, f"{HEAD}@dataclass\nclass Config:\n{body}{RUN}", {})


PARSER = """
import argparse, sys
from pathlib import Path

def options():
    parser = argparse.ArgumentParser(description="trains")
    parser.add_argument("--epochs", type=int, required=True, help="passes")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--kind", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--scale", type=lambda text: float(text) ** 2, choices=[1, 4])
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--amp", action="store_true")
    return parser.PARSE

def main():
    args = options()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 1, "learning": 2}, "unrecognized arguments: --learning 2"),
        ({"epochs": 1, "lrr": 2}, "(did you mean '--lr'?)"),
        ({"epochs": 1, "lr": "fast"}, "argument --lr: invalid float value: 'fast'"),
        ({"epochs": 1, "kind": "adamw"}, "argument --kind: invalid choice: 'adamw'"),
        ({"lr": 1}, "the following arguments are required: --epochs"),
        ({"epochs": 1, "amp": True}, "unrecognized arguments: True (--amp is a flag, which takes no value)"),
        ({"epochs": 1, "sizes": [1, 2]}, "argument --sizes: invalid int value: '[1, 2]'"),
    ],
)
def test_argparse_refuses_what_it_would_refuse_in_the_job(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    assert said in faults(tmp_path, PARSER.replace("PARSE", "parse_args()"), given)


@pytest.mark.parametrize(
    ("parse", "given"),
    [
        ("parse_args()", {"epochs": 1, "lr": 2, "scale": "7", "sizes": 3}),
        ("parse_args(sys.argv[1:])", {"epoch": 1}),
        ("parse_known_args()[0]", {"epochs": 1}),
        ("parse_known_args()", {"epochs": 1, "anything": 2}),
        ("parse_args(['--epochs', '1'])", {"anything": 2}),
        ("add_subparsers()", {"anything": 2}),
    ],
)
def test_options_that_argparse_takes_or_may_take_pass(tmp_path: Path, parse: str, given: dict[str, Any]) -> None:
    assert faults(tmp_path, PARSER.replace("PARSE", parse), given) == ""


def test_what_parse_known_args_takes_and_the_script_drops_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    for script in (
        PARSER.replace("PARSE", "parse_known_args()[0]"),
        PARSER.replace("return parser.PARSE", "args, _ = parser.parse_known_args()\n    return args"),
    ):
        told = faults(tmp_path, script, {"epochs": 1, "lrr": 3})
        assert "the script's parse_known_args ignores --lrr 3 (did you mean '--lr'?)" in told
    script = PARSER.replace("return parser.PARSE", "args, rest = parser.parse_known_args()\n    return args, rest")
    assert faults(tmp_path, script, {"epochs": 1, "lrr": 3}) == ""


@pytest.mark.parametrize(("value", "said"), [(False, "--fast False"), (0, "--fast 0"), (True, ""), ("", "")])
def test_a_false_value_that_type_bool_reads_as_true_is_told(tmp_path: Path, value: Any, said: str) -> None:
    script = PARSER.replace("PARSE", "parse_args()").replace('"--lr", type=float', '"--fast", type=bool')
    told = faults(tmp_path, script, {"epochs": 1, "fast": value})
    assert told.startswith(f"hyperparameters: argparse reads {said} as True: ") if said else told == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    main()", "    if 'SM_HPS' not in sys.argv:\n        main()"),
        ("    return parser", "    add_more(parser)\n    return parser"),
        (
            '    parser.add_argument("--amp"',
            '    for name in sys.argv:\n        parser.add_argument(name)\n    parser.add_argument("--amp"',
        ),
        ("    args = options()", "    if sys.argv:\n        return\n    args = options()"),
        ('description="trains"', "parents=[other]"),
        ('"--lr"', "NAME"),
    ],
)
def test_a_parser_that_the_syntax_does_not_decide_is_not_judged(tmp_path: Path, old: str, new: str) -> None:
    script = PARSER.replace("PARSE", "parse_args()")
    assert old in script
    assert faults(tmp_path, script.replace(old, new), {"anything": 2}) == ""


@pytest.mark.parametrize(
    "script",
    [
        "import sys, smddp\nprint(sys.argv)\n",
        "import smddp.hydra\n@smddp.hydra.main(config_path='conf')\ndef main(config): ...\nmain()\n",
        "import click\n@click.command()\n@click.option('--lr')\ndef main(lr): ...\nmain()\n",
        "import smddp\ndef main(job): ...\nsmddp.run(main)\n",
        "def (",
    ],
)
def test_other_readers_are_not_judged(tmp_path: Path, script: str) -> None:
    assert faults(tmp_path, script, {"anything": 2}) == ""


@pytest.mark.parametrize(
    ("config", "main", "said"),
    [
        ("", "def main(config, job: smddp.Job): ...", "main() has a parameter 'config' of type None; smddp.run gives"),
        (
            "class Config:\n    lr: float = 0.1\n",
            "def main(config: Config, job): ...",
            "Config, which has no @dataclass",
        ),
    ],
)
def test_a_configuration_that_is_no_dataclass_is_told(tmp_path: Path, config: str, main: str, said: str) -> None:
    assert said in faults(tmp_path, f"{HEAD}{config}\n{main}\nsmddp.run(main)\n", {})


def told(tmp_path: Path, line: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    (tmp_path / "train.py").write_text(READS.format(line))
    source = SourceCode.of({"entry_point": "train.py", "source_dir": str(tmp_path)})
    problems = ScriptFacts.of(source.modules, {}).check(
        channels=names, has_gpus=True, shares_checkpoints=True, own_image=False
    )
    return [(problem.severity, str(problem)) for problem in problems]


@pytest.mark.parametrize(
    "line",
    [
        "data = job.channels['train']",
        "job.inputs['train'].pipe(0)",
        "print(os.environ['SM_CHANNEL_TRAIN'])",
        "environ['SM_CHANNEL_TRAIN']; from os import environ",
    ],
)
def test_a_channel_by_another_name_is_an_error(tmp_path: Path, line: str) -> None:
    ((severity, said),) = told(tmp_path, line, ("training", "validation"))
    assert severity == "error"
    assert "line 3, reads the channel 'train', and the job has training, validation" in said
    assert "Give fit() a channel named 'train'" in said
    assert told(tmp_path, line, ("train",)) == []


def test_a_job_without_channels_is_refused_too(tmp_path: Path) -> None:
    ((severity, said),) = told(tmp_path, "job.channels['train']", ())
    assert (severity, said) == (
        "error",
        f"inputs: {tmp_path / 'train.py'}, line 3, reads the channel 'train', and the job has none. "
        "Give fit() {'train': 's3://…'}.",
    )


@pytest.mark.parametrize(
    "line", ["job.channels.get('train')", "if 'train' in job.channels: job.channels['train']", "job.channels[name]"]
)
def test_a_channel_that_the_script_chooses_is_not_told(tmp_path: Path, line: str) -> None:
    assert told(tmp_path, line, ("training",)) == []


def test_models_and_variables_are_channels_too() -> None:
    arguments = {"model_uri": "s3://a/model.tar.gz", "environment": {"SM_CHANNEL_EXTRA": "/data", "OTHER": "1"}}
    assert channels.names(arguments, "s3://a/data") == ("training", "model", "extra")


def found(
    tmp_path: Path, script: str, aws_version: str | None = None, *, degree: int = 1, **modules: str
) -> list[tuple[str, str]]:
    (tmp_path / "train.py").write_text(script)
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
    source = SourceCode.of({"entry_point": "train.py", "source_dir": str(tmp_path)})
    parameters = {"tensor_parallel_degree": degree}
    problems = ScriptFacts.of(source.modules, {}).check_model_parallel(parameters, aws_version=aws_version)
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


def test_a_submit_script_that_names_itself_as_the_training_script_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "from estimators import Estimator\nEstimator('train.py').fit()\n"
    assert faults(tmp_path, script, {}) == ""  # the job may send other jobs
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "train.py"), raising=False)
    assert "train.py, line 2, sends this job: the job would run the same script" in faults(tmp_path, script, {})
    assert faults(tmp_path, script.replace("Estimator(", "if this_is_no_job: Estimator("), {}) == ""
