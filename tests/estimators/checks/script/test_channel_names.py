"""A channel that every run of the script reads must be one of the job's."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.checks import channels
from estimators.checks.script import channel_names
from estimators.source_code import SourceCode
from smddp.script_syntax import executed

SCRIPT = "import os, smddp\ndef main(job):\n    {}\nif __name__ == '__main__':\n    smddp.run(main)\n"


def told(tmp_path: Path, line: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    (tmp_path / "train.py").write_text(SCRIPT.format(line))
    nodes = executed(SourceCode.of({"entry_point": "train.py", "source_dir": str(tmp_path)}).modules)
    return [(problem.severity, str(problem)) for problem in channel_names.check(nodes, names)]


@pytest.mark.parametrize(
    "line", ["data = job.channels['train']", "job.inputs['train'].pipe(0)", "print(os.environ['SM_CHANNEL_TRAIN'])"]
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
