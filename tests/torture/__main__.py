"""Runs the long forms of all that docs/explanation/reliability.md promises, and prints what came of them in one table.

    python -m tests.torture [R1 R3 …] [--seed 0] [--kills 200] [--damages 5000] …

Exits with 1 if anything failed. With the same seed the same is done again, though a kill never comes at the very same
moment.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path

from tests.torture.forms import FORMS, Form, be_quiet
from tests.torture.outcome import Outcome


def run_alone(form: Form, count: int, seed: int) -> tuple[Outcome, ...]:
    """Run a form in a process and a directory of its own, and end with it whatever happens."""
    with (
        tempfile.TemporaryDirectory(prefix="smddp-torture-", ignore_cleanup_errors=True) as directory,
        ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=be_quiet) as process,
    ):
        future = process.submit(form.run, count, seed, Path(directory))
        if (error := future.exception()) is None:
            return future.result()
    return tuple(Outcome(done=0, unit=form.option, failures=(f"{error!r}",)) for _ in form.promises)


def names(form: Form) -> set[str]:
    return {name for names in form.promises for name in names.split(", ")}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    known = sorted(set().union(*map(names, FORMS)), key=lambda name: int(name[1:]))
    parser.add_argument("promises", nargs="*", metavar="R1", help=f"which ones, of {', '.join(known)}; all")
    parser.add_argument("--seed", type=int, default=0)
    for form in FORMS:
        parser.add_argument(f"--{form.option}", type=int, default=form.count, help=f"{form.title} ({form.count})")
    arguments = parser.parse_args()
    if unknown := set(arguments.promises) - set(known):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")

    print(f"{date.today()}, seed {arguments.seed}, Python {platform.python_version()}, {os.cpu_count()} cores\n")
    print("| | what is done | how often | seconds | result | |\n|---|---|---|---|---|---|", flush=True)
    failures = []
    for form in FORMS:
        if arguments.promises and not names(form) & set(arguments.promises):
            continue
        started = time.monotonic()
        outcomes = run_alone(form, getattr(arguments, form.option.replace("-", "_")), arguments.seed)
        seconds = time.monotonic() - started
        for promise, outcome in zip(form.promises, outcomes, strict=True):
            result = f"**{len(outcome.failures)} failed**" if outcome.failures else "passed"
            cells = promise, form.title, f"{outcome.done} {outcome.unit}", f"{seconds:.0f}", result, outcome.notes
            print(f"| {' | '.join(cells)} |", flush=True)
            failures += [f"{promise}: {failure}" for failure in outcome.failures]
    print("", *failures, sep="\n")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
