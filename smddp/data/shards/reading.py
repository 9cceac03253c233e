"""Reads the micro-batches of one rank: from each of its lanes in turn, a window of the shuffle ahead."""

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
    """Nobody wants the rest."""


def read_micro_batches(
    sequence: ShardSequence,
    lanes: Interleave,
    cut: Partition,
    *,
    rank: int,
    step: int,
    is_abandoned: Callable[[], bool],
) -> Generator[list[RawRecord]]:
    """Give the micro-batches of a rank from a step to the end of the epoch.

    Files are open only while it runs; close it to end it early.

    Args:
        sequence: The shards in the epoch's order.
        lanes: The order.
        cut: How a global batch is shared; the ranks' shares are neighbours, and so are those of a rank.
        rank: Whose micro-batches.
        step: The first.
        is_abandoned: Is asked with each record.

    Raises:
        DataError: A record cannot be read.
        AbandonedError: ``is_abandoned``.
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
    """Yield the lanes that some slots of a global batch lie in, and which of a lane's slots they are."""
    for lane in range(slots.start // lanes.stride, (slots.stop - 1) // lanes.stride + 1):
        start = lane * lanes.stride
        yield lane, range(max(slots.start - start, 0), min(slots.stop - start, lanes.stride))


_Read = Callable[[Cursor, int], RawRecord]


def _lane(sequence: ShardSequence, blocks: Iterable[list[int]], stop: int, read: _Read) -> Generator[RawRecord]:
    """Yield the records of a lane, block after block.

    For each record that goes out, one of the next block is read: so reading is even, and memory that of one block.
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
    """Yield a last step that is not whole, or is filled up."""
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
