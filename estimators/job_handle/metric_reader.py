"""The values of a job's metrics, read from its log by the job's own metric definitions."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from estimators.job_handle.events import MetricValue
from estimators.log_reader import LogLine
from estimators.metric_definition import MetricDefinition, regex_of_line

if TYPE_CHECKING:
    from mypy_boto3_sagemaker.type_defs import DescribeTrainingJobResponseTypeDef, MetricDefinitionTypeDef

logger = logging.getLogger(__name__)

_PLACES = ("step", "epoch")
"""The metrics that say where in the training the others of the same line were taken."""


class MetricReader:
    """Finds the values in lines."""

    def __init__(self, definitions: Iterable[MetricDefinitionTypeDef]) -> None:
        """Compile the definitions. One that Python can't compile is left out with a warning: AWS reads it as Java does.

        Args:
            definitions: MetricDefinitions, as a job's description has them.
        """
        places = {name: MetricDefinition.parse(name, regex_of_line(name)) for name in _PLACES}
        self._metrics: list[MetricDefinition] = []
        for definition in definitions:
            try:
                parsed = MetricDefinition.parse(definition["Name"], definition["Regex"])
            except ValueError as fault:
                logger.warning("no values of %s: %s", definition["Name"], fault)
                continue
            if parsed.name in places:
                places[parsed.name] = parsed
            else:
                self._metrics.append(parsed)
        self._step, self._epoch = places.values()

    @classmethod
    def of(cls, description: DescribeTrainingJobResponseTypeDef) -> MetricReader:
        """Return the reader of a job by its description."""
        return cls(description.get("AlgorithmSpecification", {}).get("MetricDefinitions", []))

    def values(self, line: LogLine) -> list[MetricValue]:
        """Return the values in a line, in the order of the definitions; a metric has one at most.

        ``step`` and ``epoch`` are no metrics of their own, but where the others were taken: as the definitions of
        these names find them or, without such, as smddp's lines have them, ``step=120 epoch=3``.
        """
        found = [(definition.name, definition.value(line.message)) for definition in self._metrics]
        known = [(name, value) for name, value in found if value is not None]
        if not known:
            return []
        step, epoch = self._step.value(line.message), self._epoch.value(line.message)
        return [
            MetricValue(time=line.time, host=line.host, step=step, epoch=epoch, metric=name, value=value)
            for name, value in known
        ]
