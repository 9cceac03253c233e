"""``make bench-check``: the ratios of RESULTS.md, measured again, each against a limit with room for noise.

A benchmark runs once. Where a ratio misses its limit, it runs a second time, and the better ratio counts: on a busy
machine one run says little. A peer that is not installed leaves its ratio unmeasured, which is said. The exit code is 1
if a ratio misses its limit twice.

    python benchmarks/checking/check.py [--only sampler.py …]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One ratio of a benchmark's output, and its limit."""

    command: str
    what: str
    ours: str
    """A regular expression with one group, the number of smddp."""
    peer: str | None = None
    """The same of the peer, by which smddp's number is divided. None: the output has the ratio itself."""
    measured: tuple[float, ...]
    """What RESULTS.md has of it, on several days and machines."""
    at_most: float | None = None
    at_least: float | None = None

    def ratio(self, output: str) -> float | None:
        """Return the ratio; None without a peer. End the program if smddp's own number is absent."""
        found = re.search(self.ours, output, re.MULTILINE)
        other = re.search(self.peer, output, re.MULTILINE) if self.peer else None
        if found is None:
            raise SystemExit(f"benchmarks/{self.command} does not print {self.what}: correct the pattern {self.ours!r}")
        if self.peer and other is None:
            return None
        return float(found[1]) / (float(other[1]) if other else 1.0)

    def holds(self, ratio: float) -> bool:
        """Return whether a ratio is within the limit."""
        return ratio <= self.at_most if self.at_most is not None else ratio >= (self.at_least or 0.0)

    def better(self, one: float, other: float) -> float:
        """Return the better one of two ratios."""
        return min(one, other) if self.at_most is not None else max(one, other)


IMPORTS = "imports.py"
LATENCY = "fit_latency.py --repeats 3"
TRAINER = "trainer_overhead.py"
SAVE = "checkpoint.py --megabytes 200 --repeats 3 --only smddp torch.save"
ORDER = "sampler.py --sizes 1e7"
LOADER = "loader.py --images 2000 --repeats 2"
S3 = "s3_transfer.py --megabytes 600 --repeats 3"
SCALING = "scaling.py"
COLLECTIVES = "collectives.py --seconds 0.15"

# A limit leaves about as much again as lies between the best and the worst value that was measured.
CHECKS = (
    Check(
        command=IMPORTS,
        what="import Estimator, of sagemaker.pytorch's import",
        ours=r"^from estimators import Estimator .* ms +([\d.]+) ×",
        measured=(0.057, 0.063, 0.074),
        at_most=0.15,
    ),
    Check(
        command=LATENCY,
        what="fit() returns after the job, of the SDK's time",
        ours=r"^ratio ([\d.]+);",
        measured=(0.202,),
        at_most=0.5,
    ),
    Check(
        command=TRAINER,
        what="a Trainer's step, of the loop by hand",
        ours=r"^smddp, on +[\d.]+ +[+-][\d.]+ +([\d.]+)",
        measured=(1.034, 1.098, 1.055, 1.153, 1.070),
        at_most=1.3,
    ),
    Check(
        command=TRAINER,
        what="a Trainer's step, of Fabric's",
        ours=r"^smddp, on +[\d.]+ +[+-][\d.]+ +([\d.]+)",
        peer=r"^Fabric +[\d.]+ +[+-][\d.]+ +([\d.]+)",
        measured=(0.802, 0.816, 0.883, 0.910, 0.908),
        at_most=1.0,
    ),
    Check(
        command=SAVE,
        what="a save's stall, of one copy in memory",
        ours=r"^\| smddp \| \d+ ms \| ([\d.]+) \|",
        measured=(1.32, 1.26, 1.19, 1.11, 1.25),
        at_most=1.6,
    ),
    Check(
        command=SAVE,
        what="a save's stall, of torch.save's",
        ours=r"^\| smddp \| (\d+) ms \|",
        peer=r"^\| torch.save \| (\d+) ms \|",
        measured=(0.072,),
        at_most=0.2,
    ),
    Check(
        command=SAVE,
        what="a verified load, of one copy in memory",
        ours=r"^\| smddp \| (?:[^|]+\|){5} ([\d.]+) \|",
        measured=(2.42, 3.32, 2.52, 2.51, 2.68),
        at_most=4.5,
    ),
    Check(
        command=ORDER,
        what="memory of an order, of DistributedSampler's",
        ours=r"^\| 1e\+07 \| smddp ElasticSampler \| ([\d.]+) ",
        peer=r"^\| 1e\+07 \| torch DistributedSampler \| ([\d.]+) ",
        measured=(0.0026,),
        at_most=0.01,
    ),
    Check(
        command=ORDER,
        what="a seek to the middle, of DistributedSampler's",
        ours=r"^\| 1e\+07 \| smddp ElasticSampler \|.*\| ([\d.]+) \|$",
        peer=r"^\| 1e\+07 \| torch DistributedSampler \|.*\| ([\d.]+) \|$",
        measured=(0.0024,),
        at_most=0.02,
    ),
    Check(
        command=LOADER,
        what="shards of tar files, of the plain DataLoader's rate",
        ours=r"^\| File, tar \|.*\| ([\d.]+) \|$",
        measured=(0.64, 0.56),
        at_least=0.4,
    ),
    Check(
        command=S3,
        what="upload, of the fastest of s5cmd and boto3",
        ours=r"^up: ([\d.]+) ×",
        measured=(1.05, 1.08, 0.97, 0.84, 0.99),
        at_least=0.6,
    ),
    Check(
        command=S3,
        what="download, of the fastest of s5cmd and boto3",
        ours=r"^down: ([\d.]+) ×",
        measured=(0.85, 0.93, 1.02, 0.83, 0.73),
        at_least=0.5,
    ),
    Check(
        command=SCALING,
        what="two ranks, of bare DDP's rate",
        ours=r"^smddp, 2 ranks +\d+ +([\d.]+)",
        measured=(1.016, 0.968, 0.973),
        at_least=0.9,
    ),
    Check(
        command=COLLECTIVES,
        what="all_reduce of 1 MiB, of a bare loop's time",
        ours=r"^all_reduce +1048576 +[\d.]+ +([\d.]+)",
        measured=(1.043,),
        at_most=1.25,
    ),
)


def verdicts(checks: Sequence[Check], run: Callable[[str], str]) -> list[tuple[Check, float | None]]:
    """Return each check with its ratio, None if unmeasured. ``run`` runs a command and returns its output."""
    found: dict[Check, float | None] = {}
    for command in dict.fromkeys(each.command for each in checks):
        of_command = [each for each in checks if each.command == command]
        output = run(command)
        ratios = {each: each.ratio(output) for each in of_command}
        found |= ratios
        if all(ratio is None or each.holds(ratio) for each, ratio in ratios.items()):
            continue
        output = run(command)
        for each in of_command:
            first, second = found[each], each.ratio(output)
            found[each] = first if second is None else second if first is None else each.better(first, second)
    return [(each, found[each]) for each in checks]


def report(found: Sequence[tuple[Check, float | None]]) -> bool:
    """Print the table; return whether no ratio misses its limit."""
    print(f"{'':52}{'ratio':>8}  limit")
    for check, ratio in found:
        limit = f"≤ {check.at_most:g}" if check.at_most is not None else f"≥ {check.at_least:g}"
        shown = "–" if ratio is None else f"{ratio:.3g}"
        verdict = "not measured" if ratio is None else "" if check.holds(ratio) else "MISSED"
        print(f"{check.what:52}{shown:>8}  {limit:8}{verdict}".rstrip())
    return all(ratio is None or check.holds(ratio) for check, ratio in found)


def run_benchmark(command: str) -> str:
    """Run a benchmark in a process of its own, and return what it prints."""
    print(f"benchmarks/{command} …", file=sys.stderr, flush=True)
    program, *arguments = command.split()
    ended = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if ended.returncode != 0:
        raise SystemExit(f"benchmarks/{command} ended with {ended.returncode}")
    return ended.stdout


def main() -> None:
    programs = list(dict.fromkeys(each.command.split()[0] for each in CHECKS))
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--only", nargs="+", choices=programs, default=programs, metavar="PROGRAM")
    only = parser.parse_args().only
    chosen = [each for each in CHECKS if each.command.split()[0] in only]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the beginning")
    sys.exit(not report(verdicts(chosen, run_benchmark)))


if __name__ == "__main__":
    main()
