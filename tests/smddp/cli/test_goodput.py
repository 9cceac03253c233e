"""``smddp goodput`` of a run that a Trainer trained in two attempts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smddp.cli.app import app
from smddp.errors import CheckpointError
from tests.smddp.goodput.test_account import attempt


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (records := tmp_path / "run" / "checkpoints" / "goodput").mkdir(parents=True)
    for each in (attempt(1e9, step=10, saved=(8,), number=1), attempt(1e9 + 30, resumed=8, step=9, end="finished")):
        (records / each.name).write_bytes(each.to_json())
    return tmp_path / "run"


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["goodput", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_it_shows_parts_and_attempts_of_a_run_directory(run: Path) -> None:
    told = shown(str(run))
    assert "goodput 21.3% of 38 s; 2 attempts, 2 steps lost" in told
    assert re.search(r"lost +│ +2\.0 │ +5\.3%", told)
    assert "killed" in told
    assert "0 to 10" in told
    assert "evaluation" not in told
    assert shown(str(run / "checkpoints")) == told


def test_as_json_the_parts_add_up(run: Path) -> None:
    found = json.loads(shown(str(run), "--json"))
    assert sum(found["seconds"].values()) == pytest.approx(found["wall_seconds"]) == 38
    assert [each["lost_steps"] for each in found["attempts"]] == [2, 0]


def test_without_a_trainer_the_goodput_is_a_bound(run: Path) -> None:
    last = attempt(1e9 + 30, resumed=8, step=9, end="finished")
    own = replace(last, loop="script", seconds={**last.seconds, "training": 0.0, "data": 0.0, "other": 1.0}, marks=())
    (run / "checkpoints" / "goodput" / own.name).write_bytes(own.to_json())
    told = shown(str(run))
    assert "goodput at most 21.6% of 38 s" in told
    assert "other includes the training" in told
    assert json.loads(shown(str(run), "--json"))["most_goodput"] == pytest.approx(0.2158, abs=1e-4)


def test_a_plot_has_a_bar_for_each_attempt(run: Path, tmp_path: Path) -> None:
    shown(str(run), "--plot", str(tmp_path / "parts.svg"))
    picture = (tmp_path / "parts.svg").read_text()
    assert "goodput 21.3%" in picture
    assert "#d1495b" in picture  # lost
    assert "#6a040f" not in picture  # no hang


def test_a_damaged_record_is_named(run: Path) -> None:
    (run / "checkpoints" / "goodput" / "20300101T000000-0123456789ab.json").write_text("{")
    assert "20300101T000000-0123456789ab.json is damaged, and left out" in shown(str(run))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("empty", "no goodput ledger in"),
        ("absent", "there is no directory .*absent"),
        ("file", "file is a file"),
        ("ftp://x/y", "is no location"),
    ],
)
def test_a_location_without_a_ledger_is_told(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=what):
        shown(name if "://" in name else str(tmp_path / name))


def test_a_picture_of_another_kind_is_refused(run: Path) -> None:
    result = CliRunner().invoke(app, ["goodput", str(run), "--plot", "parts.txt"])
    assert result.exit_code == 2
    assert ".png, .svg or .pdf" in result.output
