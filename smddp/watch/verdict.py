"""The judgement on a job whose ranks do not move: which rank the others wait for, where it stands, and what it does.

A rank that waits in a collective is a victim. The culprit is looked for in this order, and the first that is found ends
the search:

1. a rank that computes: it is only logged, for the others may wait for it by a file or a lock;
2. a rank that no longer answers: its process is stopped, dead, or a native call holds Python's lock;
3. ranks that wait in different collectives at the same place of their order;
4. a rank that has not entered a collective of its group in which another rank waits, or that waits in none;
5. without collectives: a rank that is still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from smddp.display_text import shown_ranks
from smddp.distributed.first_failure import SAME_COLLECTIVES, SAME_STEPS
from smddp.watch.position import WAITING_PHASES, Position

_KINDS = {
    "data": ("loader stall", ", waiting for a batch"),
    "checkpoint": ("slow storage", ", in a checkpoint"),
    "ended": ("unequal steps", ""),
    "compile": ("stuck compilation", ", in a compilation"),
    "import": ("stuck import", ", in an import"),
}
"""The kind of a fault by the culprit's phase, and the words for the phase: the line may be that of a loop. In any other
phase a call of the script blocks."""
_SILENT = {
    "stopped": ("stopped process", "its process is stopped, by SIGSTOP or a debugger"),
    "dead": ("dead process", "its process has ended without a word"),
    "blocked": ("native block", "a native call holds Python's lock"),
    "": ("no answer", "no rank on its host says why"),
    "busy": ("long native call", "a native call holds Python's lock, and computes"),
    "disk": ("slow storage", "it waits for its disk"),
}
"""The kind and the explanation by the state of a rank that does not answer, the surest state first."""
_UNJUDGED = frozenset({"debugger", "failed", "unwatched"})
"""Phases of a rank for which the others may wait for good reasons."""
_LOADING = frozenset({"compile", "import"})
_ONLY_TOLD = _LOADING | {"checkpoint"}
"""Phases that are only logged. A save has its own timeouts, and ending the job would lose it. A compilation or an
import may wait for another job that compiles the same into the same cache."""
_PATIENCE = 4.0
"""If all ranks wait for each other, they count as hanging after so many times the usual bound: a first collective of
many hosts takes long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong with a job."""

    kind: str
    """Such as ``blocking call``, ``loader stall``, ``mismatched collective``, ``stopped process``."""
    ranks: Sequence[int]
    """The culprits; both ranks of a pair if nothing tells which one is wrong."""
    text: str
    """One sentence for a person: the culprit, its host, its line, and who waits for it."""
    is_sure: bool
    """Whether the culprit is stuck. A busy one may still go on."""

    @property
    def sentence(self) -> str:
        """The text with its full stop, for another sentence to follow."""
        return self.text if self.text.endswith((".", "?")) else f"{self.text}."


def judge(positions: Sequence[Position], silent: Sequence[Position], after: float) -> Verdict | None:
    """Return the verdict on the ranks of a job, or None if they do not hang.

    `positions` are of the ranks that answer, `silent` the last ones of the others. A rank is judged after `after`
    seconds without a step or a collective.
    """
    if any(each.phase in _UNJUDGED for each in (*positions, *silent)):
        return None
    victims = [each for each in positions if each.waits]
    working = [each for each in positions if not each.waits and each.still < after and each.phase != "ended"]
    if working:
        # Twice: a rank that has just begun to sleep was busy a moment ago.
        busy = [each for each in working if each.idle >= 2 * after and victims]
        return _behind(busy[0], (), victims, is_sure=False) if busy else None
    if silent:
        return _silent(positions, silent, victims)
    waiting = [each for each in victims if each.still >= after]
    # All victims vote, also those that have come late: the ranks enter the same collective as the same number.
    if waiting and (mismatch := _mismatch(victims)):
        return mismatch
    missing = [each for each in positions if _is_missing(each, waiting)]
    behind = [each for each in positions if not each.waits or each in missing]
    if waiting and not behind:
        has_hung = len(waiting) == len(positions) and all(each.still >= _PATIENCE * after for each in waiting)
        return _network(waiting) if has_hung else None
    # A rank that entered a collective a moment ago is only late, or has stopped sharing and soon counts as silent.
    if waiting and any(each.waits and each.still < after for each in behind):
        return None
    # A rank whose script has ended well is a culprit only if another rank waits for it.
    behind = [each for each in behind if waiting or each.phase != "ended"]
    if not behind or not (waiting or all(each.idle >= after for each in behind)):
        return None

    def likelihood(each: Position) -> tuple[bool, bool]:
        # A rank in a receive waits, too. A rank that another one's group lacks is likelier than one of no such group.
        return each.phase in WAITING_PHASES, each not in missing

    culprit = min(behind, key=likelihood)
    if culprit.phase in WAITING_PHASES and any(each.still < _PATIENCE * after for each in behind):
        return None
    if len({each.group for each in behind if each.waits}) > 1 and culprit.waits:
        return _between_groups([each for each in behind if each.waits])
    # Nothing tells which of several such ranks the others wait for: all are named.
    others = [each for each in behind if each is not culprit and likelihood(each) == likelihood(culprit)]
    others = [each for each in others if each.phase != "ended" != culprit.phase]
    return _behind(culprit, others, victims, is_sure=_ONLY_TOLD.isdisjoint(each.phase for each in behind))


def _is_missing(position: Position, waiting: Sequence[Position]) -> bool:
    """Return whether a rank has not entered a collective of one of its groups in which another rank waits."""
    return any(position.entered.get(each.group, each.collectives) < each.collectives for each in waiting)


def _silent(positions: Sequence[Position], silent: Sequence[Position], victims: Sequence[Position]) -> Verdict:
    seen = {rank: state for each in positions for rank, state in each.neighbours.items()}
    surest = list(_SILENT)
    last = min(silent, key=lambda each: surest.index(seen.get(each.rank, "")))
    state = seen.get(last.rank, "")
    kind, explanation = _SILENT[state]
    # A compilation or an import loads libraries in native calls, and others may wait for it in one of theirs.
    phases = {last.phase, *(each.phase for each in positions if not each.waits)}
    may_go_on = state in ("busy", "disk") or (state == "blocked" and not phases.isdisjoint(_LOADING))
    return Verdict(
        kind=kind,
        ranks=(last.rank,),
        text=f"{_name(last)} does not answer: {explanation}; last seen after {last.step} optimizer steps"
        f"{_victims(victims)}",
        is_sure=not may_go_on,
    )


def silent_store(silence: float, after: float) -> Verdict:
    """Return the verdict if the launcher's agent, which serves the store, has not answered for ``silence`` seconds."""
    return Verdict(
        kind="silent store",
        ranks=(),
        text="the launcher on the first host, through which the ranks learn of each other, does not answer: its "
        "process is stopped, or waits for a DNS server, or the network to it is broken",
        is_sure=silence >= _PATIENCE * after,
    )


def _mismatch(waiting: Sequence[Position]) -> Verdict | None:
    """Return the verdict if ranks of a group wait in different collectives at the same number of its order."""
    known = [each for each in waiting if each.collectives and each.collective]
    for group, count in {(each.group, each.collectives) for each in known}:
        there = [each for each in known if (each.group, each.collectives) == (group, count)]
        names = Counter(each.collective for each in there)
        if len(names) > 1:
            usual, votes = names.most_common(1)[0]
            has_majority = votes > len(there) / 2
            odd = [each for each in there if each.collective != usual] if has_majority else there
            return Verdict(
                kind="mismatched collective",
                ranks=tuple(each.rank for each in odd),
                text=f"the ranks are in different collectives, number {count} of each: {_places(there)}. "
                f"{SAME_COLLECTIVES}",
                is_sure=True,
            )
    return None


def compare_digests(positions: Sequence[Position]) -> Verdict | None:
    """Return the verdict if ranks have called different collectives, also if none of them waits: the sums are wrong."""
    for group in sorted({group for each in positions for group in each.digests}):
        members = [each for each in positions if group in each.digests]
        same = 0
        for number in sorted({number for each in members for number in each.digests[group]}):
            there = [each for each in members if number in each.digests[group]]
            digests = Counter(each.digests[group][number] for each in there)
            usual, votes = digests.most_common(1)[0]
            if len(digests) > 1:
                others = [each for each in there if each.digests[group][number] != usual]
                first = next(each for each in there if each not in others)
                where = "a group of both" if group else "the default group"
                return Verdict(
                    kind="mismatched collective",
                    ranks=tuple(each.rank for each in (others if votes > len(there) / 2 else there)),
                    text=f"{_names(others)} called other collectives than {_name(first)}, or "
                    f"with tensors of other sizes or types, between number {same + 1} and {number} of {where}: what "
                    "they have computed since is wrong",
                    is_sure=True,
                )
            same = number if len(there) == len(members) else same
    return None


def _between_groups(waiting: Sequence[Position]) -> Verdict:
    return Verdict(
        kind="deadlock",
        ranks=tuple(each.rank for each in waiting),
        text=f"ranks wait for each other in collectives of different groups: {_places(waiting)}. {SAME_COLLECTIVES}",
        is_sure=True,
    )


def _places(positions: Sequence[Position]) -> str:
    """Say which ranks are in which collective, the fewest first: the end of a long text is cut."""
    there = dict[tuple[str, str], list[Position]]()
    for each in positions:
        there.setdefault((each.group, each.collective), []).append(each)
    return "; ".join(
        f"{_names(ranks)} {'is' if len(ranks) == 1 else 'are'} in {ranks[0].collective} at {ranks[0].line}"
        for ranks in sorted(there.values(), key=len)
    )


def _network(waiting: Sequence[Position]) -> Verdict:
    first = waiting[0]
    return Verdict(
        kind="network",
        ranks=(),
        text=f"all ranks have entered {first.collective or 'a collective'} (number {first.collectives}), and it does "
        f"not end after {first.still:.0f} s: do the hosts reach each other, and do the kernels of all GPUs end?",
        is_sure=True,
    )


def _behind(culprit: Position, others: Sequence[Position], waiting: Sequence[Position], *, is_sure: bool) -> Verdict:
    named = (culprit, *others)
    kind, phase = _KINDS.get(culprit.phase, ("blocking call", ""))
    if culprit.phase in WAITING_PHASES:
        kind = "deadlock"
    if culprit.phase == "ended":
        what = f"has ended its script after {culprit.step} optimizer steps, and {_further(waiting[0], culprit)}"
    else:
        # A rank that has stopped computing since is stuck, however long it was busy before.
        is_busy = not is_sure and culprit.still < culprit.idle / 2
        doing = "has been busy, without a step or a collective," if is_busy else "has not moved"
        seconds = culprit.idle if is_busy else culprit.still
        what = f"{doing} for {seconds:.0f} s after {culprit.step} optimizer steps{phase}: {culprit.line}"
    return Verdict(
        kind=kind,
        ranks=tuple(sorted((culprit.rank, *(each.rank for each in others)))),
        text=f"{_name(culprit)} {what}{_others(others)}{_victims([each for each in waiting if each not in named])}",
        is_sure=is_sure,
    )


def _further(position: Position, ended: Position) -> str:
    """Say how much further a rank is than one whose script has ended, and what to do."""
    rank = f"rank {position.rank}"
    if position.phase == "backward":
        return f"{rank} is in step {position.step + 1}. {SAME_STEPS}"
    if position.step == ended.step:
        return f"{rank} has taken as many. {SAME_COLLECTIVES}"
    return f"{rank} has taken {position.step}. {SAME_STEPS}"


def _name(position: Position) -> str:
    return f"rank {position.rank} on {position.host}"


def _names(positions: Sequence[Position]) -> str:
    return shown_ranks({each.rank: each.host for each in positions})


def _others(others: Sequence[Position]) -> str:
    """Say which other ranks are in the same case as the culprit, and where the first of them is."""
    if not others:
        return ""
    here = f", and {_name(others[0])} is here" if len(others) > 1 else ""
    return f". Neither {'have' if here else 'has'} {_names(others)}{here}: {others[0].line}"


def _victims(waiting: Sequence[Position]) -> str:
    if not waiting:
        return ""
    first = waiting[0]
    who = f"rank {first.rank} waits" if len(waiting) == 1 else f"rank {first.rank} and {len(waiting) - 1} more wait"
    return f". {who} for it in {first.collective or 'a collective'}, {first.line}"
