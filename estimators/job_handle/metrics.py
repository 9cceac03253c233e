"""The values of a job's metrics: read from its log by the job's own metric definitions, and as a table."""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from estimators.errors import EstimatorError
from estimators.job_handle import matcher
from estimators.job_handle.events import MetricValue, StatusChange
from estimators.job_handle.matcher import MATCH_SECONDS, MEAN_SECONDS
from estimators.log_reader import LogLine
from estimators.metric_definition import MetricDefinition, finite, pieces, regex_of_line
from smddp.display_text import shown_name

if TYPE_CHECKING:
    import pandas
    from mypy_boto3_sagemaker.type_defs import DescribeTrainingJobResponseTypeDef, MetricDefinitionTypeDef


logger = logging.getLogger(__name__)
_PLACES = ("step", "epoch")
"""The metrics that locate a line's other metrics in the training."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_./:-]+")

_COLUMNS = [field.name for field in dataclasses.fields(MetricValue)]
_BROKEN_OFF = frozenset({"Interrupted", "Restarting"})


class MetricReader:
    """Finds values in lines. Regexes other than smddp's own are matched in another process, until `close`."""

    def __init__(self, definitions: Iterable[MetricDefinitionTypeDef]) -> None:
        """Compile a description's MetricDefinitions, and skip those that Python can't compile, with a warning.

        AWS uses Java's regexes, so a skipped one may be valid.
        """
        places = {name: MetricDefinition.parse(name, regex_of_line(name)) for name in _PLACES}
        self._metrics: list[MetricDefinition] = []
        for definition in definitions:
            try:
                parsed = MetricDefinition.parse(definition["Name"], definition["Regex"])
            except ValueError as fault:
                logger.warning("no values of %s: %s", shown_name(definition["Name"]), fault)
                continue
            if parsed.name in places:
                places[parsed.name] = parsed
            else:
                self._metrics.append(parsed)
        self._step, self._epoch = places.values()
        self._foreign = [each for each in (*self._metrics, *places.values()) if not _is_own(each)]
        self._search: _BoundedSearch | None = None
        self._given_up: set[MetricDefinition] = set()

    @classmethod
    def of(cls, description: DescribeTrainingJobResponseTypeDef) -> MetricReader:
        """Return the reader for a job's description."""
        return cls(description.get("AlgorithmSpecification", {}).get("MetricDefinitions", []))

    def values(self, line: LogLine) -> list[MetricValue]:
        """Return the values in a line, in the order of its pieces and of the definitions.

        A piece is the line itself, or one state of a progress bar; each metric has at most one value in a piece.
        ``step`` and ``epoch`` locate the other values and yield none themselves; without definitions of these names,
        smddp's form applies: ``step=120 epoch=4/5``.
        """
        return [value for piece in pieces(line.message) for value in self._values_of(piece, line)]

    def close(self) -> None:
        """End the other process, if there is one; the next line would start another."""
        search, self._search = self._search, None
        if search is not None:
            search.close()

    def _values_of(self, piece: str, line: LogLine) -> list[MetricValue]:
        foreign = self._foreign_values(piece)
        found = [(each.name, _value(each, piece, foreign)) for each in self._metrics]
        known = [(name, value) for name, value in found if value is not None]
        if not known:
            return []
        step, epoch = (_value(each, piece, foreign) for each in (self._step, self._epoch))
        return [
            MetricValue(time=line.time, host=line.host, step=step, epoch=epoch, metric=name, value=value)
            for name, value in known
        ]

    def _foreign_values(self, piece: str) -> dict[MetricDefinition, float | None]:
        """Return the values that the regexes other than smddp's own find."""
        values: dict[MetricDefinition, float | None] = dict.fromkeys(self._foreign)
        if self._given_up.issuperset(values):
            return values
        try:
            if self._search is None:
                self._search = _BoundedSearch([each.regex.pattern for each in self._foreign])
            answers = self._search.search(piece)
        except OSError as fault:
            self._given_up.update(values)
            logger.warning("no more values of %s: %s", ", ".join(shown_name(each.name) for each in values), fault)
            return values
        for number, text in answers:
            definition = self._foreign[number]
            if text is not None:
                values[definition] = finite(text)
                continue
            self._given_up.add(definition)
            logger.warning(
                "no more values of %s: its regex took over %g seconds of CPU time for one line, or %g ms a line",
                shown_name(definition.name),
                MATCH_SECONDS,
                MEAN_SECONDS * 1000,
            )
        return values


def _is_own(definition: MetricDefinition) -> bool:
    """Return whether a regex is one of smddp's own, which takes linear time."""
    own = definition.regex.pattern == regex_of_line(definition.name)
    return own and _PLAIN_NAME.fullmatch(definition.name) is not None


def _value(definition: MetricDefinition, piece: str, foreign: dict[MetricDefinition, float | None]) -> float | None:
    return foreign[definition] if definition in foreign else definition.value(piece)


# Search lines for the regexes of a job's request in a separate process, so that no regex can block this one.
#
# While Python's `re` matches, no other thread and no signal handler runs: one regex of a few characters would hang a
# notebook, or the whole console. A caller here waits for the answer. The local platform, whose jobs do not wait for
# metrics, uses the same process in ``local/engine/hosted/metrics.py``.
class _BoundedSearch:
    """A process that searches lines, until `close`. Starting it may raise OSError. For one thread at a time."""

    def __init__(self, regexes: Sequence[str]) -> None:
        self._process = MatcherProcess(regexes)
        self._process.begin()

    def search(self, line: str) -> list[tuple[int, str | None]]:
        """Return the matches in a line: each regex's number and its first group, or None if the regex took too long.

        Raise OSError if the process has ended.
        """
        self._process.lines.write(f"{json.dumps([line, None])}\n{json.dumps(None)}\n")
        self._process.lines.flush()
        found: list[tuple[int, str | None]] = []
        while (answer := self._process.answers.readline()).endswith("\n"):
            if (content := json.loads(answer)) is None:
                return found
            found.append((content[0], content[1]))
        raise BrokenPipeError("the process that searches lines has ended")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.answers.close()
        with suppress(BrokenPipeError):  # its buffer still holds a line
            self._process.lines.close()


class MatcherProcess:
    """A process that searches lines for regexes, until `kill` or the end of this process. May raise OSError."""

    def __init__(self, regexes: Sequence[str]) -> None:
        self._order = json.dumps([regexes, matcher.MATCH_SECONDS, matcher.MEAN_SECONDS])
        watched, self._alive = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", matcher.__file__, str(watched)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[watched],
                start_new_session=True,  # so that Ctrl-C does not reach it
                cwd="/",
            )
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(watched)
        assert self._process.stdin is not None and self._process.stdout is not None
        self.lines: TextIO = self._process.stdin  # type: ignore[assignment]  # typeshed: IO[str]
        """Its input: one JSON value on each line."""
        self.answers: TextIO = self._process.stdout  # type: ignore[assignment]
        """Its output, in the same form."""

    def begin(self) -> None:
        """Send the regexes, before the first line. May block, or raise BrokenPipeError if the process has ended."""
        self.lines.write(f"{self._order}\n")

    def kill(self) -> None:
        """End the process. Both pipes stay open: their user closes them."""
        self._process.kill()
        self._process.wait()
        os.close(self._alive)


def table(values: Iterable[MetricValue]) -> pandas.DataFrame:
    """Return one row for each value, in order; step and epoch are integers if all are whole, and NA if unknown.

    Raise EstimatorError if pandas is not installed.
    """
    library = required("pandas", "metrics()", "it comes with the SageMaker SDK: pip install pandas")
    frame: pandas.DataFrame = library.DataFrame([dataclasses.astuple(value) for value in values], columns=_COLUMNS)
    frame["time"] = library.to_datetime(frame["time"], utc=True)
    for name in ("step", "epoch"):
        numbers = frame[name].astype("Float64")
        whole = (numbers.dropna() % 1 == 0).all()
        frame[name] = numbers.astype("Int64") if whole else numbers
    frame["value"] = frame["value"].astype("float64")
    return frame


def attempts_begun(changes: Sequence[StatusChange]) -> list[datetime]:
    """Return the times at which training resumed after an interruption or a restart."""
    begun, broken_off = [], False
    for change in changes:
        if change.status in _BROKEN_OFF:
            broken_off = True
        elif broken_off and change.status == "Training":
            begun.append(change.time)
            broken_off = False
    return begun


def required(module: str, call: str, remedy: str) -> Any:
    """Return an optional package that `call` needs. Raise EstimatorError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as fault:
        raise EstimatorError(
            f"{call} needs {module}, which can't be imported ({fault}). Install it: {remedy}"
        ) from fault
