"""R3: no damage to a checkpoint is loaded in silence.

The newer of two checkpoints is damaged in one place, in any file and in many ways. Each time the older one must load,
to the bit, and the log must say why the newer one did not. Then the damage is mended, and the next one done.

    python -m tests.torture.damage [--count 5000] [--seed 0]
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from smddp.checkpoint import Checkpointer
from smddp.checkpoint.format.tensors import bytes_of
from smddp.checkpoint.restore.listing import inspect
from smddp.checkpoint.restore.reader import Loaded, read_checkpoint, read_newest
from smddp.checkpoint.run_state import capture_random_state
from smddp.checkpoint.stores import Store, open_store
from smddp.checkpoint.stores.store import step_name
from smddp.errors import CheckpointError
from tests.smddp.checkpoint.by_hand import write_checkpoint
from tests.torture.outcome import Outcome

PAGE = 4096

Dice = random.Random


def flip_a_bit(data: bytearray, dice: Dice) -> None:
    bit = dice.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8


def zero_a_page(data: bytearray, dice: Dice) -> None:
    start = dice.randrange(0, len(data), PAGE)
    data[start : start + PAGE] = bytes(len(data[start : start + PAGE]))


def zero_the_end(data: bytearray, dice: Dice) -> None:
    """What is left of a file whose last pages never reached the disk."""
    start = dice.randrange(len(data))
    data[start:] = bytes(len(data) - start)


def scribble(data: bytearray, dice: Dice) -> None:
    start = dice.randrange(len(data))
    size = min(dice.randint(1, 64), len(data) - start)
    data[start : start + size] = dice.randbytes(size)


def exchange_two_bytes(data: bytearray, dice: Dice) -> None:
    one, other = dice.sample(range(len(data)), 2)
    data[one], data[other] = data[other], data[one]


def exchange_two_pages(data: bytearray, dice: Dice) -> None:
    one, other = (PAGE * dice.randrange(max(1, len(data) // PAGE)) for _ in range(2))
    page = data[one : one + PAGE]
    data[one : one + PAGE] = data[other : other + PAGE]
    data[other : other + PAGE] = page


def truncate(data: bytearray, dice: Dice) -> None:
    del data[dice.randrange(len(data)) :]


def extend(data: bytearray, dice: Dice) -> None:
    data += dice.choice((b"\0", b"\n", data[:PAGE], dice.randbytes(dice.randint(1, 2 * PAGE))))


def lose_some(data: bytearray, dice: Dice) -> None:
    start = dice.randrange(len(data))
    del data[start : start + dice.randint(1, 100)]


IN_A_FILE = (
    *(flip_a_bit, zero_a_page, zero_the_end, scribble, exchange_two_bytes, exchange_two_pages),
    *(truncate, extend, lose_some),
)


def damage_at_random(*, count: int, seed: int, directory: Path) -> Outcome:
    """Damage a checkpoint so many times; a third of them one of one process, one of two, and one of a sharded model.

    Args:
        count: how many times.
        seed: of all that is random.
        directory: where to save; it is empty, or not there.
    """
    dice = random.Random(seed)
    done: Counter[str] = Counter()
    failures = []
    third = count // 3
    for save, times in (_save, count - 2 * third), (_save_as_two, third), (_save_in_pieces, third):
        store = open_store(directory / save.__name__)
        for step in (1, 2):
            save(store, step)
        failures += [f"{each} (seed {seed})" for each in _damage_newer(store, times, dice, done)]
    notes = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in done.most_common())
    return Outcome(done=done.total(), unit="damages", notes=notes, failures=tuple(failures))


def _damage_newer(store: Store, times: int, dice: Dice, done: Counter[str]) -> Iterator[str]:
    """Damage the newer one so many times, count how, and say what goes wrong."""
    older, newer = read_checkpoint(store, 1), read_checkpoint(store, 2)
    files = sorted(path for path in Path(store.path(2)).rglob("*") if path.is_file())
    whole = {path: path.read_bytes() for path in files}
    end = done.total() + times
    with _warnings() as warnings:
        while done.total() < end:
            path = dice.choice(files)
            kind = _damage(path, whole, dice)
            if kind is not None:
                done[kind] += 1
                yield from (f"{kind}, {path.name}: {each}" for each in _notice(store, older, warnings))
            _mend(path, whole[path])
            if done.total() % 100 == 0 and not _same(read_newest(store), newer):
                yield f"after {done.total()} damages and repairs the newer one does not load"


def _notice(store: Store, older: Loaded, warnings: list[str]) -> Iterator[str]:
    """Say what is wrong with how the damage to the newer one is noticed."""
    warnings.clear()
    try:
        loaded = read_newest(store)
    except CheckpointError as error:
        yield f"it does not fall back: {error}"
    else:
        if not _same(loaded, older):
            yield "it is not noticed on loading"
        if [store.path(2) in each for each in warnings] != [True]:
            yield f"the log does not say why, but {warnings}"
    if inspect(store, 2).valid:
        yield "it is not noticed on verifying"


class _Part:
    """A part of a run that only gives its state."""

    def __init__(self, state: object) -> None:
        self.state = state

    def state_dict(self) -> object:
        return self.state

    def load_state_dict(self, state: object) -> None:
        raise AssertionError


def _save(store: Store, step: int) -> None:
    with Checkpointer(str(store), {name: _Part(part) for name, part in _state(step).items()}) as checkpointer:
        checkpointer.save(step)


def _save_as_two(store: Store, step: int) -> None:
    ranks = {"ranks": [{"rng": capture_random_state()} for _ in range(2)]}
    write_checkpoint(store, step, {**_state(step), **ranks}, writers=2)


def _save_in_pieces(store: Store, step: int) -> None:
    write_checkpoint(store, step, _state(step), writers=2, pieces=True)


def _state(step: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(step)
    weights = {f"layer.{index}": torch.randn(50, 40, generator=generator) for index in range(6)}
    moments = {index: torch.randn(50, 40, generator=generator).square() for index in range(2)}
    return {
        "model": weights | {"bias": torch.randn(7, generator=generator), "empty": torch.empty(0)},
        "optimizer": {"state": moments, "lr": 0.1 / step},
    }


def _damage(path: Path, whole: Mapping[Path, bytes], dice: Dice) -> str | None:
    """Damage a file, and say how; None if by chance its bytes are as they were."""
    kind = dice.choice((*IN_A_FILE, "deleted", "a directory instead", "the older one's instead", "another instead"))
    if not isinstance(kind, str):
        data = bytearray(whole[path])
        kind(data, dice)
        path.write_bytes(data)
        return kind.__name__ if data != whole[path] else None
    if kind == "the older one's instead":
        newer = next(parent for parent in path.parents if parent.name == step_name(2))
        (older,) = newer.with_name(step_name(1)).rglob(path.name)
        shutil.copy(older, path)
    elif kind == "another instead":
        path.write_bytes(whole[dice.choice(list(whole))])
    else:
        path.unlink()
        if kind == "a directory instead":
            path.mkdir()
    return kind if not path.is_file() or path.read_bytes() != whole[path] else None


def _mend(path: Path, content: bytes) -> None:
    if path.is_dir():
        path.rmdir()
    path.write_bytes(content)


def _same(one: Loaded | None, other: Loaded) -> bool:
    """Equal in all they say and to the last bit of their tensors."""
    if one is None or (one.manifest, one.skeletons) != (other.manifest, other.skeletons):
        return False
    content, expected = (
        {(part, name): tensor for part, tensors in each.tensors.items() for name, tensor in tensors.items()}
        for each in (one, other)
    )
    return content.keys() == expected.keys() and all(
        content[key].shape == expected[key].shape and bytes_of(content[key]) == bytes_of(expected[key])
        for key in content
    )


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what the reader says of checkpoints that it passes over, instead of printing it."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    reader = logging.getLogger(read_newest.__module__)
    propagated, reader.propagate = reader.propagate, False
    reader.addHandler(handler)
    try:
        yield found
    finally:
        reader.removeHandler(handler)
        reader.propagate = propagated


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcome = damage_at_random(count=arguments.count, seed=arguments.seed, directory=Path(directory))
    print(outcome)
    sys.exit(bool(outcome.failures))


if __name__ == "__main__":
    main()
