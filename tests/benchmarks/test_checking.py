"""`make bench-check`: its patterns fit the benchmarks' output, its limits what was measured, and a miss is told."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "checking" / "check.py"
_OUTPUTS = {
    "imports.py": "from estimators import Estimator     80.6 ms   0.057 × import sagemaker.pytorch\n",
    "fit_latency.py": "ratio 0.202; target: at most 1 s\n",
    "trainer_overhead.py": (
        "by hand          122.1          +0.0   1.000\n"
        "smddp, off       126.0          +5.0   1.040\n"
        "smddp, on        128.8         +11.3   1.098\n"
        "Fabric           193.4         +39.6   1.345\n"
    ),
    "checkpoint.py": (
        "| smddp | 26 ms | 1.32 | 427 ms | 1.31 | 46 ms | 2.42 | every byte | 1.00 × | -16.7% | -10.4% |\n"
        "| torch.save | 363 ms | 20.60 | 363 ms | 1.15 | 46 ms | 2.60 | nothing | 0.00 × | -3.5% | -2.6% |\n"
    ),
    "sampler.py": (
        "| 1e+07 | smddp ElasticSampler | 1.2 | 2.32 | 82 | 1.75 |\n"
        "| 1e+07 | torch DistributedSampler | 457.4 | 745.45 | 16 | 717.08 |\n"
    ),
    "loader.py": "| File, tar | 4315 | 119 | 127 | 11.8 | 0.64 |\n",
    "s3_transfer.py": (
        "\nup: 1.05 × the fastest of the others, s5cmd, in the same turn; target 0.9"
        "\ndown: 0.85 × the fastest of the others, boto3 CRT, in the same turn; target 0.9\n"
    ),
    "scaling.py": "smddp, 2 ranks                    6241    0.973        0.54\n",
    "collectives.py": "all_reduce         1048576    2817.9   1.043\n",
}
"""Lines of RESULTS.md, in the form in which each program prints them."""


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_check", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there for their module
    spec.loader.exec_module(module)
    return module


def output(command: str) -> str:
    return _OUTPUTS[command.split()[0]]


def test_each_ratio_is_found_and_within_its_limit(check: ModuleType) -> None:
    found = check.verdicts(check.CHECKS, output)
    assert [each.what for each, ratio in found if ratio is None] == []
    for each, ratio in found:
        assert each.holds(ratio), each.what
        assert any(ratio == pytest.approx(value, rel=0.1) for value in each.measured), each.what
    assert check.report(found)


def test_a_limit_leaves_room_above_what_was_measured(check: ModuleType) -> None:
    for each in check.CHECKS:
        worst = max(each.measured) if each.at_most is not None else min(each.measured)
        room = each.at_most / worst if each.at_most is not None else worst / each.at_least
        assert room >= 1.07, each.what


def test_each_program_of_a_check_is_there(check: ModuleType) -> None:
    assert all((FILE.parents[1] / each.command.split()[0]).is_file() for each in check.CHECKS)


def test_a_miss_is_measured_again_and_then_told(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [each for each in check.CHECKS if each.command == "scaling.py"]
    ratios = iter(["0.5", "0.95", "0.5", "0.6"])

    def run(command: str) -> str:
        return f"smddp, 2 ranks                    6241    {next(ratios)}        0.54\n"

    assert check.report(check.verdicts(checks, run)), "the second run counts"
    assert not check.report(check.verdicts(checks, run))
    assert "MISSED" in capsys.readouterr().out


def test_a_miss_has_no_other_benchmark_measured_again(check: ModuleType) -> None:
    ran: list[str] = []

    def run(command: str) -> str:
        ran.append(command.split()[0])
        return output(command).replace("0.973", "0.5")

    check.verdicts([each for each in check.CHECKS if each.command.split()[0] in ("scaling.py", "collectives.py")], run)
    assert ran.count("collectives.py") == 1
    assert "scaling.py" in ran


def test_a_number_of_ours_that_is_not_printed_ends_the_program(check: ModuleType) -> None:
    checks = [each for each in check.CHECKS if each.command == "scaling.py"]
    with pytest.raises(SystemExit, match=r"scaling.py does not print two ranks"):
        check.verdicts(checks, lambda command: "")


def test_a_peer_that_is_not_installed_is_not_measured(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [each for each in check.CHECKS if each.command == "trainer_overhead.py"]
    assert check.report(check.verdicts(checks, lambda command: output(command).replace("Fabric", "none")))
    assert "not measured" in capsys.readouterr().out
