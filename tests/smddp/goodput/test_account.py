"""The join of a run's attempts: its parts add up to the wall time, and each is where it belongs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.goodput import join_attempts, read_account
from smddp.goodput.attempt import DIRECTORY, MEASURED, Attempt, End, Mark

_NOTHING = dict.fromkeys(MEASURED, 0.0)


def attempt(
    began: float,
    *,
    resumed: int = 0,
    step: int = 0,
    saved: tuple[int, ...] = (),
    end: End = "",
    launched: float | None = None,
    number: int = 1,
) -> Attempt:
    """An attempt that starts for 5 s, and takes a second a step, a tenth of it for data, without further saves."""

    def spent(steps: int) -> dict[str, float]:
        return {**_NOTHING, "start": 5.0, "training": 0.9 * steps, "data": 0.1 * steps}

    marks = [Mark(step=each, seconds=spent(each - resumed)) for each in (resumed, *saved)]
    return Attempt(
        id=f"{number:012x}",
        host="host",
        world_size=2,
        launched=began - 2 if launched is None else launched,
        began=began,
        seconds=spent(step - resumed),
        resumed=resumed,
        step=step,
        durable=saved[-1] if saved else resumed,
        marks=marks,
        pause=1.0,
        end=end,
    )


def parts(*attempts: Attempt, now: float = 1e9) -> dict[str, float]:
    return {
        part: round(seconds, 6) for part, seconds in join_attempts(attempts, now=now).seconds.items() if seconds > 1e-9
    }


def test_one_attempt_starts_with_its_launcher() -> None:
    assert parts(attempt(100, step=10, saved=(10,), end="finished")) == {"training": 9, "data": 1, "start": 7}


def test_what_a_later_attempt_repeats_is_lost() -> None:
    first, second = attempt(100, step=10, saved=(4, 8)), attempt(130, resumed=8, step=9, end="finished")
    found = join_attempts([second, first], now=1e9)  # in any order
    assert [each.lost_steps for each in found.attempts] == [2, 0]
    assert parts(first, second) == pytest.approx(
        {"training": 8.1, "data": 0.9, "lost": 2, "start": 7, "waiting": 13, "restart": 7}
    )


def test_an_attempt_that_began_before_its_past_is_told() -> None:
    first = attempt(5000, step=10, saved=(10,), end="stopped", number=1)
    second = attempt(100, resumed=10, step=20, saved=(20,), end="finished", number=2)  # on a host that is late
    (problem,) = join_attempts([first, second], now=1e9).problems
    assert problem.startswith(f"attempt {second.id} continued from step 10, saved only by an attempt that began")
    in_order = replace(second, launched=6000.0, began=6000.0)
    older = attempt(100, resumed=7, step=9, end="stopped", number=3)  # its checkpoint is from before the ledger
    assert not join_attempts([older, first, in_order], now=1e9).problems


def test_steps_that_an_attempt_undid_itself_are_lost_too() -> None:
    run = attempt(100, step=10, saved=(4, 8))
    undid = replace(run, undone=3, seconds={**run.seconds, "training": 8.0, "lost": 1.0})
    found = join_attempts([undid, attempt(130, resumed=8, step=9, end="finished")], now=1e9)
    assert [each.lost_steps for each in found.attempts] == [2 + 3, 0]
    assert found.seconds["lost"] == pytest.approx(1 + 0.8 + 0.2)
    assert Attempt.from_json(undid.to_json()) == undid


def test_a_resume_from_an_older_checkpoint_loses_the_steps_of_all_attempts_since() -> None:
    runs = [
        attempt(100, step=10, saved=(4, 8, 10), end="stopped"),
        attempt(130, resumed=10, step=14, saved=(12,)),
        attempt(160, resumed=4, step=20, saved=(20,), end="finished"),  # the others were damaged
    ]
    found = join_attempts(runs, now=1e9)
    assert [each.lost_steps for each in found.attempts] == [6, 4, 0]
    assert found.seconds["lost"] == pytest.approx(10)
    assert found.seconds["training"] == pytest.approx(18)


def test_between_two_saves_the_lost_time_is_in_proportion_to_the_steps() -> None:
    found = join_attempts(
        [attempt(100, step=10, saved=(2, 8)), attempt(130, resumed=5, step=6, end="finished")], now=1e9
    )
    assert found.attempts[0].lost_steps == 5
    assert found.seconds["lost"] == pytest.approx(5)


def test_after_a_stop_the_last_wait_for_its_checkpoint_is_not_lost() -> None:
    stopped = attempt(100, step=10, saved=(10,), end="stopped")
    waited = replace(stopped, seconds={**stopped.seconds, "checkpoint": 3.0})
    assert parts(waited, attempt(130, resumed=10, step=11, end="finished"))["checkpoint"] == 3
    killed = replace(waited, end="")  # its evaluation after the save, say, is repeated
    assert parts(killed, attempt(130, resumed=10, step=11, end="finished"))["lost"] == 3


def test_without_a_later_attempt_a_failed_one_loses_what_is_not_durable_and_a_running_one_nothing() -> None:
    failed = attempt(100, step=10, saved=(8,), end="failed")
    assert parts(failed)["lost"] == 2
    under_way = replace(failed, end="")
    assert "lost" not in parts(under_way, now=under_way.ended + 1)
    assert parts(under_way)["lost"] == 2
    assert join_attempts([under_way], now=under_way.ended + 1).attempts[0].end == "running"
    assert join_attempts([under_way]).attempts[0].end == "killed"


def test_a_restart_by_the_agent_is_no_wait_for_capacity() -> None:
    first, again = attempt(100, step=4, launched=98), attempt(115, resumed=0, step=1, end="finished", launched=98)
    assert parts(first, again) == pytest.approx({"training": 0.9, "data": 0.1, "start": 7, "lost": 4, "restart": 11})


def test_after_an_attempt_that_finished_nothing_waits() -> None:
    first = attempt(100, step=4, saved=(4,), end="finished")
    more = attempt(10_000, resumed=4, step=6, saved=(6,), end="finished")
    assert parts(first, more) == pytest.approx({"training": 5.4, "data": 0.6, "start": 14})


def test_attempts_that_overlap_are_told() -> None:
    first, second = attempt(100, step=50, saved=(50,), end="stopped"), attempt(120, resumed=50, step=51, end="finished")
    found = join_attempts([first, second], now=1e9)
    assert "35 s before the end of an earlier one" in found.problems[0]
    assert found.wall_seconds == pytest.approx(57 + 6)


@st.composite
def _lives(draw: st.DrawFn) -> list[Attempt]:
    lives, began = list[Attempt](), 10_000.0
    for number in range(draw(st.integers(1, 6))):
        began += draw(st.floats(0.0, 100.0))
        resumed = draw(st.integers(0, 30))
        steps = sorted(draw(st.lists(st.integers(resumed, resumed + 50), max_size=5)))
        last = max([resumed, *steps])
        life = attempt(
            began,
            resumed=resumed,
            step=last + draw(st.integers(0, 9)),
            saved=tuple(dict.fromkeys(steps)),
            end=draw(st.sampled_from(("", "finished", "stopped", "failed", "hang"))),
            launched=began - draw(st.floats(0.0, 2000.0)),
            number=number,
        )
        lives.append(life)
        began = life.ended
    return lives


@given(_lives())
def test_the_parts_add_up_to_the_wall_time_and_none_is_negative(lives: list[Attempt]) -> None:
    found = join_attempts(lives, now=1e9)
    wall = lives[-1].ended - min(lives[0].launched, lives[0].began)
    for before, after in pairwise(lives):
        if before.end == "finished":  # the pause does not count
            wall -= max(min(after.launched, after.began) - before.ended, 0.0)
    assert found.wall_seconds == pytest.approx(wall)
    assert all(seconds >= -1e-9 for each in found.attempts for seconds in each.seconds.values())
    assert sum(found.shares.values()) == pytest.approx(1)


def test_a_record_that_is_read_has_the_name_of_its_file() -> None:
    life = attempt(1e9 + 0.9996)  # the next second, in a record's milliseconds
    assert Attempt.from_json(life.to_json()).name == life.name


def test_what_a_scripts_own_loop_did_bounds_the_goodput() -> None:
    trained = attempt(100, step=10, saved=(10,), end="failed")
    own = replace(
        attempt(117, resumed=10, step=20, end="finished"),
        loop="script",
        seconds={**_NOTHING, "start": 5.0, "checkpoint": 1.0, "other": 4.0},
        marks=(),
    )
    found = join_attempts([trained, own], now=1e9)
    assert found.wall_seconds == 29
    assert (found.goodput, found.most_goodput) == (pytest.approx(9 / 29), pytest.approx(13 / 29))
    assert join_attempts([trained], now=1e9).most_goodput == join_attempts([trained], now=1e9).goodput


def test_a_record_that_does_not_say_whose_loop_it_was_is_refused() -> None:
    content = json.loads(attempt(100, step=10).to_json())
    del content["loop"]
    with pytest.raises(ValueError, match="a field is missing"):
        Attempt.from_json(json.dumps(content).encode())


@given(_lives())
def test_a_record_is_read_as_it_was_written(lives: list[Attempt]) -> None:
    for life in lives:
        again = Attempt.from_json(life.to_json())
        assert again.ended == pytest.approx(life.ended, abs=0.01)
        assert again.marks[-1].step == life.marks[-1].step
        assert (again.step, again.end, again.name) == (life.step, life.end, life.name)


def _record(directory: Path, life: Attempt, **changes: object) -> None:
    content = {**json.loads(life.to_json()), **changes}
    (directory / life.name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 1},
        {"id": "../../../etc"},
        {"host": "a\x1b[2J"},
        {"host": ["host"]},
        {"end": "won"},
        {"loop": "mine"},
        {"step": -1},
        {"step": 1.5},
        {"step": True},
        {"step": 10**30},
        {"seconds": [1, 2, 3]},
        {"seconds": [1e300] * 7},
        {"seconds": [0.0, *[10.0] * 6]},  # less than its marks
        {"began": -5},
        {"began": "now"},
        {"marks": [[1]]},
        {"marks": 7},
        {"marks": [[9, *[0.0] * 7], [3, *[0.0] * 7]]},
        {"parts": ["training"]},
        {"pause": None},
    ],
    ids=str,
)
def test_a_hostile_record_is_named_and_left_out(tmp_path: Path, changes: dict[str, object]) -> None:
    (records := tmp_path / DIRECTORY).mkdir()
    _record(records, good := attempt(100, step=4, saved=(4,), end="finished", number=1))
    _record(records, bad := attempt(200, step=4, saved=(4,), end="finished", number=2), **changes)
    found = read_account(DirectoryStore(tmp_path))
    assert [each.attempt.id for each in found.attempts] == [good.id]
    assert len(found.problems) == 1
    assert bad.name in found.problems[0]
    assert found.problems[0].isprintable()


@given(st.data())
def test_a_torn_record_is_left_out(data: st.DataObject) -> None:
    whole = attempt(100, step=4, saved=(4,)).to_json()
    with pytest.raises(ValueError, match=r"."):
        Attempt.from_json(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_what_is_no_record_is_passed_over_and_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    (records := tmp_path / DIRECTORY).mkdir()
    (records / "notes.txt").write_text("mine")
    (records / "20260101T000000-000000000001.json.smddp-partial").write_text("{")
    (records / "20260101T000000-000000000002.json").symlink_to("/dev/zero")
    (records / "20260101T000000-000000000003.json").write_bytes(b" " * 2**17)
    (records / "20260101T000000-000000000004.json").write_bytes(b"[" * 2**15)
    (records / "20260101T000000-000000000005.json").symlink_to("20260101T000000-000000000005.json")
    found = read_account(DirectoryStore(tmp_path))
    assert not found.attempts
    assert [problem.split()[0][-7:] for problem in found.problems] == ["02.json", "03.json", "04.json", "05.json"]
    assert not read_account(DirectoryStore(tmp_path / "absent")).problems
