"""Seconds and size of a model's archive: the local platform's gzip against zlib's fastest level, in one run."""

from __future__ import annotations

import argparse
import tarfile
import tempfile
import time
from pathlib import Path

import torch

from estimators.local.engine.transfers.artifacts import fast_gzip


def by_zlib(file: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz", compresslevel=1) as bundle:
        bundle.add(file, file.name)


def by_platform(file: Path, archive: Path) -> None:
    with (
        archive.open("wb") as target,
        fast_gzip(target) as packed,
        tarfile.TarFile(fileobj=packed, mode="w", copybufsize=1 << 20) as bundle,
    ):
        bundle.add(file, file.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--megabytes", type=int, default=200, help="size of each file")
    count = parser.parse_args().megabytes * 10**6
    with tempfile.TemporaryDirectory() as directory:
        file, archive = Path(directory) / "model", Path(directory) / "model.tar.gz"
        text = b"".join(path.read_bytes() for path in sorted(Path(torch.__file__).parent.glob("*.py")))
        contents = {
            "float32": lambda: torch.randn(count // 4).mul_(0.02).numpy().tobytes(),
            "bfloat16": lambda: torch.randn(count // 2).mul_(0.02).bfloat16().view(torch.int16).numpy().tobytes(),
            "text": lambda: (text * (count // len(text) + 1))[:count],
        }
        for name, content in contents.items():
            file.write_bytes(content())
            seconds, sizes = [], []
            for pack in (by_zlib, by_platform):
                began = time.perf_counter()
                pack(file, archive)
                seconds.append(time.perf_counter() - began)
                sizes.append(archive.stat().st_size / count)
            print(
                f"{name}: {seconds[1]:.2f} s, {sizes[1]:.0%} of its size; zlib {seconds[0]:.2f} s, {sizes[0]:.0%}; "
                f"ratio {seconds[1] / seconds[0]:.3f}"
            )


if __name__ == "__main__":
    main()
