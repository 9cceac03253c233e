"""The judgement on ranks that do not move: the culprit, never a rank that waits for it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from smddp.watch.position import Position
from smddp.watch.verdict import compare_digests, judge

AFTER = 30.0


def at(rank: int, **others: Any) -> Position:
    """Return a rank that has not moved for 40 s, outside of a collective."""
    fields: dict[str, Any] = {
        "host": f"algo-{rank + 1}",
        "pid": 100 + rank,
        "processes": "boot pid:[1]",
        "beat": 50,
        "step": 7,
        "group": "",
        "collectives": 9,
        "collective": "all_reduce of float32 [8]",
        "waits": False,
        "idle": 40.0,
        "usual": 1.0,
        "still": 40.0,
        "phase": "script",
        "frames": ("job/train.py:31 main: time.sleep(600)",),
    }
    fields = {"rank": rank, **fields, **others}
    return Position(**{"entered": {fields["group"]: fields["collectives"]}, **fields})


def waiting(rank: int, **others: Any) -> Position:
    return at(rank, **{"collectives": 10, "waits": True, "phase": "backward", **others})


@pytest.mark.parametrize(
    ("positions", "silent", "kind", "ranks", "said"),
    [
        ([waiting(0), at(1)], [], "blocking call", (1,), "rank 1 on algo-2 has not moved for 40 s after 7 optimizer"),
        (
            [waiting(0), at(1, phase="data")],
            [],
            "loader stall",
            (1,),
            "after 7 optimizer steps, waiting for a batch: .* rank 0 waits for it in all_reduce",
        ),
        ([at(0), waiting(1), waiting(2)], [], "blocking call", (0,), "rank 1 and 1 more wait"),
        (
            [waiting(0, step=8), at(1, phase="ended", still=1.0)],
            [],
            "unequal steps",
            (1,),
            "ended its script after 7 optimizer steps, and rank 0 is in step 9. All ranks must take the same number: .*"
            "rank 0 waits for it in",
        ),
        (
            [waiting(0), waiting(1, collective="barrier")],
            [],
            "mismatched collective",
            (0, 1),
            "rank 1 .* in barrier",
        ),
        (
            [waiting(0), waiting(1, collective="barrier"), waiting(2)],
            [],
            "mismatched collective",
            (1,),
            "number 10 of each",
        ),
        (
            [waiting(0), waiting(1, collective="all_reduce of float32 [4]"), waiting(2, still=5.0)],
            [],
            "mismatched collective",
            (1,),
            "of each: rank 1 on algo-2 is in all_reduce of float32 .4. at .*; ranks 0, 2 are in all_reduce of",
        ),
        (  # the odd one of many is in the part that SageMaker shows
            [waiting(rank, collective="barrier" if rank == 50 else "all_reduce") for rank in range(64)],
            [],
            "mismatched collective",
            (50,),
            "each: rank 50 on algo-51 is in barrier at .{,60}; ranks 0, 1, 2 and 60 more are in all_reduce at",
        ),
        ([waiting(0, still=130.0), waiting(1, still=121.0)], [], "network", (), "do the hosts reach each other"),
        ([waiting(0), waiting(1, collectives=9, still=121.0)], [], "deadlock", (1,), "rank 1"),
        # in a collective of another group, without hooks, or in a receive
        ([at(0, phase="collective"), at(1)], [], "blocking call", (1,), "rank 1"),
        (
            [at(0, phase="collective", still=130.0), at(1, phase="backward", still=121.0)],
            [],
            "deadlock",
            (0, 1),
            r"rank 0 on algo-1 has not moved for 130 s .*\. Neither has rank 1 on algo-2: job/train.py:31",
        ),
        (  # rank 0 waits for rank 1 by a file, and nothing tells it
            [at(0), at(1, frames=("job/train.py:32 main: sleep",))],
            [],
            "blocking call",
            (0, 1),
            r"rank 0 on algo-1 .*time\.sleep\(600\)\. Neither has rank 1 on algo-2: job/train.py:32 main: sleep$",
        ),
        (
            [at(0, waits=True, collectives=10, phase="backward"), *(at(rank, phase="data") for rank in range(1, 6))],
            [],
            "loader stall",
            (1, 2, 3, 4, 5),
            "Neither have ranks 2, 3, 4 and 1 more, and rank 2 on algo-3 is here: .* rank 0 waits",
        ),
        (
            [waiting(0, phase="collective"), at(1, phase="ended")],
            [],
            "unequal steps",
            (1,),
            "after 7 optimizer steps, and rank 0 has taken as many. All ranks must enter the same collectives",
        ),
        ([waiting(0, step=8, phase="collective"), at(1, phase="ended")], [], "unequal steps", (1,), "has taken 8. All"),
        ([waiting(0), at(1, phase="ended"), at(2)], [], "unequal steps", (1,), "on_nonfinite=.skip.. rank"),
        ([waiting(0), at(1), at(2, phase="ended")], [], "blocking call", (1,), "main: time.sleep.600.. rank 0 waits"),
        ([waiting(0), at(1, idle=90.0)], [], "blocking call", (1,), "has not moved for 40 s"),  # busy until 40 s ago
        ([at(0)], [], "blocking call", (0,), "has not moved for 40 s.*: job/train.py:31 main: time.sleep"),
        # ranks 0 and 1 have a group, as ranks 2 and 3: rank 3 skips its collective, and rank 1 waits for rank 3
        (
            [
                waiting(0, group="a", collectives=4, entered={"": 9, "a": 4}),
                waiting(1, group="", collectives=10, entered={"": 10, "a": 3}),
                waiting(2, group="b", collectives=4, entered={"": 10, "b": 4}),
                at(3, entered={"": 9, "b": 3}),
            ],
            [],
            "blocking call",
            (3,),
            "rank 0 and 2 more wait for it",
        ),
        # rank 1 has skipped a collective of the group
        (
            [
                waiting(0, still=130.0, group="a", collective="all_reduce of b", entered={"": 9, "a": 10}),
                waiting(1, still=121.0, entered={"": 10, "a": 9}),
            ],
            [],
            "deadlock",
            (0, 1),
            "rank 0 on algo-1 is in all_reduce of b at .*; rank 1 on algo-2 is in all_reduce of float32",
        ),
        # of two ranks that wait in no collective, the one that the group lacks
        (
            [at(0, entered={"": 9}), waiting(1, group="a", entered={"a": 10}), at(2, entered={"": 9, "a": 9})],
            [],
            "blocking call",
            (2,),
            "rank 1 waits for it",
        ),
        (
            [
                waiting(0, group="a", collective="barrier", entered={"a": 10}),
                waiting(1, group="b", entered={"b": 10}),
                waiting(2, group="a", entered={"a": 10}),
            ],
            [],
            "mismatched collective",
            (0, 2),
            "number 10 of each: rank 0 .* is in barrier .*; rank 2 on algo-3 is in all_reduce",
        ),
        ([waiting(0, neighbours={1: "stopped"})], [at(1)], "stopped process", (1,), "SIGSTOP"),
        ([waiting(0, neighbours={1: "blocked"})], [at(1)], "native block", (1,), "holds Python's lock"),
        ([waiting(0, neighbours={1: "dead"})], [at(1)], "dead process", (1,), "ended without a word"),
        ([waiting(0)], [at(1)], "no answer", (1,), "no rank on its host says why"),
        ([waiting(0, neighbours={1: "busy", 2: "stopped"})], [at(1), at(2)], "stopped process", (2,), "SIGSTOP"),
    ],
)
def test_the_culprit_is_named_with_its_kind(
    positions: list[Position], silent: list[Position], kind: str, ranks: tuple[int, ...], said: str
) -> None:
    verdict = judge(positions, silent, AFTER)
    assert verdict is not None
    assert (verdict.kind, tuple(verdict.ranks), verdict.is_sure) == (kind, ranks, True)
    assert re.search(said, verdict.text)


@pytest.mark.parametrize(
    "positions",
    [
        [waiting(0), waiting(1, collectives=9, idle=0.0, still=0.0, phase="script")],  # an old position
        [at(0, idle=2.0, still=2.0), at(1)],  # rank 0 trains on: the ranks do not wait for each other
        [waiting(0, still=2.0, idle=2.0), at(1, idle=2.0, still=2.0)],
        [waiting(0), at(1, idle=3.0, still=3.0)],  # it has just come from a long step
        [waiting(0), at(1, phase="debugger")],
        [waiting(0), at(1, phase="failed")],
        [at(0, phase="collective"), at(1, phase="backward")],  # the same without hooks
        [waiting(0), waiting(1)],  # a first collective of many hosts takes long
        [waiting(0, group="a", collectives=1, entered={"a": 1}), waiting(1, collectives=1)],  # in two groups
        [at(0), at(1, still=2.0)],  # rank 0 waits for rank 1 by other means, as ranks that compile do
        [at(0, still=2.0), at(1, phase="ended", idle=50.0)],  # rank 0 evaluates on
        [at(0, still=2.0, idle=2.0), at(1, phase="ended")],
        [at(0, phase="debugger")],
    ],
)
def test_ranks_that_move_or_are_debugged_do_not_hang(positions: list[Position]) -> None:
    assert judge(positions, [], AFTER) is None


@pytest.mark.parametrize(
    ("phase", "kind", "where"),
    [
        ("import", "stuck import", "in an import"),
        ("compile", "stuck compilation", "in a compilation"),
        ("checkpoint", "slow storage", "in a checkpoint"),
    ],
)
def test_what_may_wait_for_another_job_is_only_told(phase: str, kind: str, where: str) -> None:
    verdict = judge([at(0, phase=phase), waiting(1)], [], AFTER)
    assert verdict is not None
    assert (verdict.kind, verdict.is_sure) == (kind, False)
    assert f"rank 0 on algo-1 has not moved for 40 s after 7 optimizer steps, {where}: " in verdict.text
    all_wait = judge([at(0, phase=phase), at(1, phase=phase)], [], AFTER)
    assert all_wait is not None
    assert not all_wait.is_sure


def test_a_rank_that_computes_is_only_told_as_busy() -> None:
    assert judge([waiting(0), at(1, still=1.0, idle=59.0)], [], AFTER) is None
    verdict = judge([waiting(0), at(1, still=1.0, idle=61.0)], [], AFTER)
    assert verdict is not None
    assert not verdict.is_sure
    assert "has been busy, without a step or a collective, for 61 s" in verdict.text
    verdict = judge([waiting(0), at(1, phase="checkpoint")], [], AFTER)
    assert verdict is not None
    assert (verdict.kind, verdict.is_sure) == ("slow storage", False)
    verdict = judge([waiting(0, neighbours={1: "busy"})], [at(1)], AFTER)
    assert verdict is not None
    assert (verdict.kind, verdict.is_sure) == ("long native call", False)


def test_a_native_call_in_a_compilation_or_an_import_is_only_told() -> None:
    blocked = {"neighbours": {1: "blocked"}}
    for verdict in (
        judge([waiting(0, **blocked)], [at(1, phase="import")], AFTER),
        judge([at(0, phase="compile", **blocked)], [at(1)], AFTER),  # it waits for rank 1's compilation by a lock
    ):
        assert verdict is not None
        assert (verdict.kind, verdict.ranks, verdict.is_sure) == ("native block", (1,), False)
    verdict = judge([waiting(0, neighbours={1: "stopped"})], [at(1, phase="import")], AFTER)
    assert verdict is not None
    assert verdict.is_sure


def test_a_position_travels_as_json() -> None:
    position = at(3, neighbours={1: "dead"})
    again = Position.from_json(position.to_json().encode())
    assert (again.rank, again.line, again.neighbours) == (3, position.line, {1: "dead"})


@pytest.mark.parametrize(
    ("digests", "ranks", "said"),
    [
        (
            [{64: 1, 128: 2}, {64: 1, 128: 3}],
            (0, 1),
            "rank 1 on algo-2 called other .* than rank 0 .* number 65 and 128",
        ),
        ([{64: 1, 128: 2}, {64: 1, 128: 3}, {64: 1, 128: 3}], (0,), "rank 0 on algo-1 called other .* than rank 1"),
        ([{64: 1, 192: 2}, {128: 5, 192: 3}, {64: 1, 192: 3}], (0,), "between number 1 and 192 of the default group"),
    ],
)
def test_ranks_whose_collectives_have_another_digest_are_named(
    digests: list[dict[int, int]], ranks: tuple[int, ...], said: str
) -> None:
    verdict = compare_digests([at(rank, digests={"": own}) for rank, own in enumerate(digests)])
    assert verdict is not None
    assert (verdict.kind, tuple(verdict.ranks), verdict.is_sure) == ("mismatched collective", ranks, True)
    assert re.search(said, verdict.text)


def test_digests_are_compared_at_the_same_number_of_the_same_group() -> None:
    each = [{"": {64: 1, 128: 2}}, {"": {64: 1, 192: 3}, "a": {64: 7}}, {"b": {64: 8}}, {}]
    assert compare_digests([at(rank, digests=own) for rank, own in enumerate(each)]) is None
    again = Position.from_json(at(0, digests=each[1]).to_json().encode())
    assert again.digests == each[1]
