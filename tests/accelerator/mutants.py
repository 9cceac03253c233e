"""Change the product's handling of devices, one place at a time, and see whether the tests on the late device notice.

    python -m tests.accelerator.mutants [--jobs 2] [TEXT]

Each mutant is one occurrence of a pattern below, in a copy of the package. It is killed if a test fails, and lives if
all pass. TEXT selects the mutants whose line or file contains it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.accelerator import late_device

ROOT = late_device.ROOT
HERE = "tests/accelerator"
TESTS = (
    ("tests/smddp/test_accelerator.py", f"{HERE}/test_streams.py", f"{HERE}/test_saves.py"),
    (f"{HERE}/test_one_device.py", "-k", "None-1 or bf16 or metric or overflows or pinned"),
    (f"{HERE}/test_two_ranks.py", "-k", "train or collectives or carries or is_named"),
)
"""From the fastest to the slowest: most mutants are killed by the first."""
PATTERNS = (
    (r"non_blocking=True", "non_blocking=False"),
    (r"if has_streams\(device\)", "if False"),
    (r"event\.synchronize\(\)", "pass"),
    (r"if has_streams\(files\[name\]\[entry\.name\]\.device\)", "if False"),
    (r"self\._device_copies\.wait\(\)", "0.0"),
    (r"                synchronize\(device\)", "                pass"),
    (r"copy\.(launch|forget)\(\)", "pass"),
    (r"self\._ended = self\._record\(self\._stream\)", "pass"),
    (r"self\._transferred = self\._record\(self\._transfer_stream\)", "pass"),
    (r"self\._record\(self\._transfer_stream\)", "self._record(self._stream)"),
    (r"self\._transferred\.synchronize\(\)", "pass"),
    (r"self\._transfer_stream\.wait_event\(self\._ended\)", "pass"),
    (r"with self\._module\.stream\(self\._transfer_stream\):", "if True:"),
    (r"buffer\.record_stream\(self\._transfer_stream\)", "pass"),
    (r"self\._module\.current_stream\(self\._device\)", "self._module.Stream(self._device)"),
    (r"self\._module\.Stream\(self\._device\)", 'self._module.Stream("late:0")'),
    (r"self\._module\.Event\(enable_timing=True\)", "self._module.Event()"),
    (r"with self\._module\.device\(self\._device\):.*", "if True:"),
    (r"\.resolve_conj\(\)\.resolve_neg\(\)", ""),
    (r"peak > self\._peak_of_buffer", "peak > 0"),
    (r"peak > self\._peak_of_buffer", "self._peak_of_buffer == 0"),
    (r"max\(usable - self\._needed, 0\) // 2", "max(usable - self._needed, 0)"),
    (r"max\(usable - self\._needed, 0\) // 2", "usable"),
    (r"self\._limit = size // 2", "pass"),
    (r"self\._size \+ size <= self\._available", "True"),
    (r"_ALIGNMENT = 512", "_ALIGNMENT = 1"),
    (r"int\(free\) \+ int\(module\.memory_reserved\(device\)\)", "int(free)"),
    (r"tensors\[last\[-1\]\.name\]\.device == tensors\[entry\.name\]\.device", "True"),
    (r"stream\.record_event\((.*)\)$", r"\1"),
    (r"tensor\.is_cpu and tensor\.is_contiguous", "tensor.is_contiguous"),
    (r"pin_memory=True", "pin_memory=False"),
    (r"pin_memory=has_streams\(device\)", "pin_memory=False"),
    (r"device\.type == os\.environ\.get\(DEVICE_VARIABLE\) and .*", "False"),
    (r'device\.type != "cpu"', 'device.type == "cuda"'),
    (r'device\.type not in \("cpu", "mps"\)', 'device.type == "cuda"'),
    (r"set_current_device\(device\)", "pass"),
    (r"synchronize\(setting\.device\)", "pass"),
    (r'current_device\(device_kind\(\) or "cuda"\)', 'torch.device("cuda", 0)'),
    (r"move_module\(self\.module, self\.device\)", "self.module.to(self.device)"),
    (r"move_module\(self\.module, self\.device\)", "pass"),
    (r"\*\*random_states\(\),", ""),
    (r"set_random_state\(generator, kind, device\)", "pass"),
    (r"\.get_rng_state\(index\)", ".get_rng_state(0)"),
    (r"\.set_rng_state\(state, index\)", ".set_rng_state(state, 0)"),
    (r'torch\.device\(device_kind\(\) or "cuda", first\)', 'torch.device(device_kind() or "cuda", 0)'),
    (r'torch\.device\(device_kind\(\) or "cuda", first\)', "CPU"),
    (r"torch\.autocast\(self\.device\.type", 'torch.autocast("cpu"'),
    (r"GradScaler\(self\.device\.type\)", 'GradScaler("cpu")'),
    (r"self\._own\.to\(device\)\.add_\(value\.to\(device\)", "self._own.add_(value"),
    (r"value\.device if self\._own\.is_cpu else self\._own\.device", "value.device"),
    (r"\.to\(self\._own\.device\)", ""),
    (r"value\.is_cpu and ", ""),
    (r"membership\.control_device if own\.is_cpu else own\.device", "membership.control_device"),
    (r"\.to\(value\.device\)", ""),
    (r"default_device_backend_map\.get\(device\.type\)", 'default_device_backend_map.get("cpu")'),
    (r'return f"cpu:gloo,\{device\.type\}:\{name\}"', "return name"),
    (r"return CPU if carries_cpu else self\.device", "return self.device"),
    (r"return CPU if carries_cpu else self\.device", "return CPU"),
    (
        r"moved = item\.to\(device, non_blocking=True\) if _takes_non_blocking\(kind\) else item\.to\(device\)",
        "moved = item",
    ),
    (r"return item\.to\(device, non_blocking=True\)", "return item"),
    (r"moment\.synchronize\(\)", "pass"),
    (r"bool\(moment\.query\(\)\)", "True"),
    (r"event\.record\(\)$", "pass"),
    (r"self\.snapshotter\.await_copies\(\)", "0.0"),
    (r"before or is_foreign", "before"),
    (r'"max_memory_allocated"', '"nothing"'),
)
FILES = (
    *("accelerator.py", "distributed/device.py", "distributed/membership.py", "distributed/collectives.py"),
    *("distributed/ranks.py", "distributed/replica.py", "checkpoint/run_state.py", "checkpoint/save/staging.py"),
    *("checkpoint/save/device_copies.py", "checkpoint/save/snapshot.py"),
    *("checkpoint/save/rank_saver.py", "metrics/step_timer.py", "metrics/device_use.py", "metrics/running_mean.py"),
    *("training/precision.py", "training/training_data.py", "training/trained_model.py", "watch/watchdog.py"),
    *("collectives/measure.py", "collectives/program.py"),
)


@dataclass(frozen=True)
class Mutant:
    """A file of the package with one line changed."""

    file: str
    number: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"smddp/{self.file}:{self.number}: {self.before.strip()}  ->  {self.after.strip()}"


def mutants() -> Iterator[Mutant]:
    """Yield a mutant for each line and pattern that match, each change once."""
    seen = set[Mutant]()
    for file in FILES:
        for number, line in enumerate((ROOT / "smddp" / file).read_text().splitlines(), 1):
            for pattern, replacement in PATTERNS:
                after = re.sub(pattern, replacement, line, count=1)
                if after != line and not line.lstrip().startswith("#"):
                    mutant = Mutant(file, number, line, after)
                    if mutant not in seen:
                        seen.add(mutant)
                        yield mutant


def killer(mutant: Mutant | None) -> str:
    """Return the first test that fails, or an empty text if the mutant lives; None is the product as it is."""
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(shutil.copytree(ROOT / "smddp", Path(scratch, "smddp")))
        if mutant is not None:
            lines = (package / mutant.file).read_text().splitlines()
            lines[mutant.number - 1] = mutant.after
            (package / mutant.file).write_text("\n".join(lines) + "\n")
        environ = late_device.environment()
        device, rest = environ["PYTHONPATH"].split(":", 1)
        environ |= {"PYTHONPATH": f"{device}:{scratch}:{rest}", "PYTHONDONTWRITEBYTECODE": "1"}
        environ.pop("SMDDP_REQUIRE", None)
        for test in TESTS:
            options = ["-q", "-x", "-n0", "-p", "no:cacheprovider", f"--basetemp={scratch}/tests", "--timeout=100"]
            command = [sys.executable, "-P", "-m", "pytest", *options, *test]
            told = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True)
            if told.returncode not in (0, 1):  # pytest's codes of tests that pass and fail
                raise RuntimeError(f"{mutant}: exit code {told.returncode}\n{told.stdout}{told.stderr}")
            if told.returncode:
                failed = re.search(r"^(?:FAILED|ERROR) (\S+)", told.stdout, re.MULTILINE)
                assert failed is not None, told.stdout
                return failed[1]
    return ""


def main() -> int:
    """Run the mutants, and print those that live; the exit code is 1 if more than a tenth do."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("text", nargs="?", default="")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if failed := killer(None):
        raise SystemExit(f"{failed} fails without any mutant")
    chosen = [each for each in mutants() if options.text in str(each)]
    with ThreadPoolExecutor(options.jobs) as pool:
        killers = list(pool.map(lambda each: _told(each, killer(each)), chosen))
    alive = [each for each, found in zip(chosen, killers, strict=True) if not found]
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants were killed; alive:", *alive, sep="\n  ")
    return int(len(alive) > len(chosen) / 10)


def _told(mutant: Mutant, found: str) -> str:
    print("killed by " + found if found else "LIVES", mutant, sep=": ", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
