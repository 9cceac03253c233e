from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators import Estimator
from estimators.checks import aws_limits
from estimators.metric_definition import completed, definitions, finite, regex_of_line
from smddp.metrics.metric_lines import metrics_line
from tests.estimators.conftest import ROLE

SCRIPT = """
import smddp
def main(job):
    trainer = smddp.Trainer(job, model, optimizer)
    trainer.log(reduce="mean", accuracy=0.5, val_loss=1e-7, **others)
    math.log(2)
smddp.run(main)
"""
OF_EVERY_TRAINER = [
    *("loss", "lr", "samples_per_second", "step", "epoch", "grad_norm"),
    *("goodput", "slow_rank", "slow_share"),
]
MINE = {"Name": "mine", "Regex": "mine=(.*)"}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def to(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return to


def names(found: list[dict[str, str]]) -> list[str]:
    return [definition["Name"] for definition in found]


def test_the_names_are_the_trainers_and_those_that_the_script_logs() -> None:
    assert names(definitions(ast.parse(SCRIPT), most=40)) == [*OF_EVERY_TRAINER, "accuracy", "val_loss"]


def test_timing_has_its_own() -> None:
    found = names(definitions(ast.parse(SCRIPT.replace("optimizer)", "optimizer, timing=True)")), most=40))
    assert {"time_data", "time_other", "mfu", "peak_memory_gib"} <= set(found)


@pytest.mark.parametrize("value", [0.1234, -3.5, 1e-7, 3.2e38, 12345.6, 7])
def test_each_finds_its_number_in_a_line_and_no_other(value: float) -> None:
    line = "12:00:00 " + metrics_line(12, 3, {"val_loss": -1, "loss": value, "accuracy": 9.5}, epochs=5)
    found = {
        each["Name"]: [float(number) for number in re.findall(each["Regex"], line)]
        for each in definitions(ast.parse(SCRIPT), most=40)
    }
    assert {name: numbers for name, numbers in found.items() if numbers} == {
        "step": [12],
        "epoch": [4],
        "loss": [pytest.approx(value, rel=1e-3)],
        "val_loss": [-1],
        "accuracy": [9.5],
    }


def test_they_are_within_the_limits_of_aws() -> None:
    many = ", ".join(f"{'m' * 200}{number}=1" for number in range(60))
    found = definitions(ast.parse(f"import smddp\ntrainer.log({many})"), most=aws_limits.most("metric_definitions"))
    assert len(found) == 40
    assert list(aws_limits.check("metric_definitions", found)) == []


def test_a_name_that_the_user_defines_is_the_users_and_the_users_all_stay() -> None:
    loss = {"Name": "loss", "Regex": "my loss: (.*)"}
    assert completed([MINE, loss], ast.parse(SCRIPT), most=4) == [
        *(MINE, loss),
        *({"Name": name, "Regex": regex_of_line(name)} for name in ("lr", "samples_per_second")),
    ]
    assert completed([MINE] * 5, ast.parse(SCRIPT), most=4) == [MINE] * 5


@pytest.mark.parametrize("given", [[], "loss", ["loss"]])
def test_an_empty_list_turns_them_off_and_an_invalid_value_stays_for_the_checks(given: Any) -> None:
    assert completed(given, ast.parse(SCRIPT), most=40) == given


@pytest.mark.usefixtures("telemetry")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [*OF_EVERY_TRAINER, "accuracy", "val_loss"]),
        ({"metric_definitions": []}, []),
        ({"metric_definitions": [MINE]}, ["mine", *OF_EVERY_TRAINER, "accuracy", "val_loss"]),
    ],
)
@pytest.mark.slow
def test_the_request_has_them_after_the_users_own(
    given: dict[str, Any],
    expected: list[str],
    write: Callable[[str], Path],
    sagemaker_session: Any,
    requests: list[dict[str, Any]],
) -> None:
    Estimator(
        entry_point=str(write(SCRIPT)),
        role=ROLE,
        instance_type="ml.g5.xlarge",
        framework_version="2.8.0",
        py_version="py312",
        sagemaker_session=sagemaker_session,
        **given,
    ).fit(wait=False)
    assert names(requests[-1]["AlgorithmSpecification"].get("MetricDefinitions", [])) == expected


@pytest.mark.parametrize(
    ("text", "number"), [("1000", 1000.0), ("1e-3", 0.001), ("1_000", None), ("nan", None), ("", None), (None, None)]
)
def test_a_number_is_what_cloudwatch_takes_for_one(text: str | None, number: float | None) -> None:
    assert finite(text) == number
