"""The global batch is said where the script says it, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from estimators.checks.script.facts import ScriptFacts
from estimators.plan.global_batch import GlobalBatch
from estimators.source_code import SourceCode


def batch_of(script: Path, given: dict[str, Any]) -> int | None:
    modules = SourceCode.of({"entry_point": str(script)}).modules
    facts = ScriptFacts.of(modules, {name: json.dumps(value) for name, value in given.items()})
    batch = GlobalBatch.of(facts, given)
    return None if batch is None else batch.size


SCRIPT = """
import smddp

def main(config, job):
    trainer = smddp.Trainer(job)
    loader = trainer.loader({arguments})
    {more}

smddp.run(main)
"""


@pytest.mark.parametrize(
    ("arguments", "more", "size"),
    [
        ("train, batch_size=config.batch_size", "", 256),
        ("train, config.batch_size", "", 256),
        ("train, batch_size=96", "", 96),
        ("train, batch_size=config.batch_size // 2", "", None),
        ("train, batch_size=other.batch_size", "", None),
        ("train, batch_size=config.size", "", None),
        ("train, batch_size=config.name", "", None),
        ("loader", "", None),
        ("train, batch_size=96", "other.loader(test, batch_size=3)", None),
        ("train, batch_size=96", "x = 1\ndef elsewhere(t):\n    t.loader(test, batch_size=3)", None),
    ],
)
def test_what_the_script_writes_out_is_known(tmp_path: Path, arguments: str, more: str, size: int | None) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(arguments=arguments, more=more))
    given: dict[str, Any] = {"batch_size": 256, "name": "256"}
    assert batch_of(tmp_path / "train.py", given) == size


@pytest.mark.parametrize(
    "text", ["loader = make().loader(train, batch_size=3)", "import smddp\nsmddp.run(main)", "def ("]
)
def test_of_another_script_nothing_is_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert batch_of(tmp_path / "train.py", {"batch_size": 256}) is None
