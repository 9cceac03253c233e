"""Reads the micro-batches of one rank from its lanes in turn, one block of the shuffle ahead."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice

from smddp.data.formats.record import RawRecord
from smddp.data.order.partition import Partition
from smddp.data.shards.interleave import Interleave
from smddp.data.shards.sequence import Cursor, ShardSequence


class AbandonedError(Exception):
    """The reader no longer wants the records."""


def read_micro_batches(
    sequence: ShardSequence,
    lanes: Interleave,
    cut: Partition,
    *,
    rank: int,
    step: int,
    is_abandoned: Callable[[], bool],
) -> Generator[list[RawRecord]]:
    """Yield the micro-batches of a rank from ``step`` to the end of the epoch; files are open only while it runs.

    The ranks' shares of a global batch are neighbours, and so are the micro-batches of a rank. Raise DataError if a
    record cannot be read, AbandonedError once ``is_abandoned`` returns True (asked before each record).
    """

    def read(cursor: Cursor, place: int) -> RawRecord:
        if is_abandoned():
            raise AbandonedError
        return cursor.read(place)

    with ExitStack() as stack:
        share = lanes.global_batch // cut.world_size
        streams = []
        for lane, slots in _slots(lanes, range(rank * share, (rank + 1) * share)):
            blocks = lanes.blocks(lane, slots, step)
            streams.append(
                (stack.enter_context(closing(_lane(sequence, blocks, (lane + 1) * lanes.length, read))), len(slots))
            )
        for _ in range(step, lanes.steps):
            records = [record for stream, count in streams for record in islice(stream, count)]
            size = share // cut.accumulate
            assert len(records) == share, (len(records), share)
            yield from (records[start : start + size] for start in range(0, share, size))
    if max(step, lanes.steps) < cut.steps:
        yield from _last(sequence, lanes, cut, rank, read)


def shares_of(cut: Partition) -> Partition:
    """Return the same cut with all shares on one rank, in the order of the ranks."""
    return replace(cut, world_size=1, accumulate=cut.shares)


def _slots(lanes: Interleave, slots: range) -> Iterator[tuple[int, range]]:
    """Yield the lanes that contain some slots of a global batch, each with its own slots among them."""
    for lane in range(slots.start // lanes.stride, (slots.stop - 1) // lanes.stride + 1):
        start = lane * lanes.stride
        yield lane, range(max(slots.start - start, 0), min(slots.stop - start, lanes.stride))


_Read = Callable[[Cursor, int], RawRecord]


def _lane(sequence: ShardSequence, blocks: Iterable[list[int]], stop: int, read: _Read) -> Generator[RawRecord]:
    """Yield the records of a lane, block after block.

    For each record it yields, it reads one of the next block: reading is steady, and memory stays at one block.
    """
    with sequence.cursor(stop=stop) as cursor:
        order: list[int] = []
        held: dict[int, RawRecord] = {}
        for following in blocks:
            next_held: dict[int, RawRecord] = {}
            places = iter(sorted(following))
            for place in order:
                yield held.pop(place)
                if (ahead := next(places, None)) is not None:
                    next_held[ahead] = read(cursor, ahead)
            for ahead in places:
                next_held[ahead] = read(cursor, ahead)
            order, held = following, next_held
        yield from (held.pop(place) for place in order)


def _last(
    sequence: ShardSequence, lanes: Interleave, cut: Partition, rank: int, read: _Read
) -> Generator[list[RawRecord]]:
    """Yield the last step if it is short or wrapped."""
    shares = shares_of(cut)
    if cut.short:
        all_positions = [positions.tolist() for positions in shares.short_positions(0)]
    else:
        all_positions = shares.positions(range(cut.steps - 1, cut.steps), 0)[0].tolist()
    mine = all_positions[rank * cut.accumulate : (rank + 1) * cut.accumulate]
    places = [list(lanes.places(positions)) for positions in mine]
    with sequence.cursor() as cursor:
        held = {place: read(cursor, place) for place in sorted({place for each in places for place in each})}
    yield from ([held[place] for place in each] for each in places)
