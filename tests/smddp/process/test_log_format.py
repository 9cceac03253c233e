import logging
import re

import pytest

from smddp.process.log_format import LogFormat


def record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("smddp.training.run", level, "", 0, text, (), None)


@pytest.mark.parametrize(
    ("level", "modules", "line"),
    [
        (logging.INFO, False, "step=10 loss=1.5"),
        (logging.WARNING, False, "WARNING rank 1 on algo-2: step=10 loss=1.5"),
        (logging.INFO, True, "smddp.training.run: step=10 loss=1.5"),
        (logging.DEBUG, True, "DEBUG smddp.training.run: step=10 loss=1.5"),
    ],
)
def test_a_line_begins_with_its_text_and_names_the_module_at_debug_only(level: int, modules: bool, line: str) -> None:
    form = LogFormat("rank 1 on algo-2", named_from=logging.WARNING, modules=modules)
    assert re.sub(r"^\d\d:\d\d:\d\d ", "", form.format(record(level, "step=10 loss=1.5"))) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rank 1 on algo-2 waits for rank 0", "WARNING rank 1 on algo-2 waits for rank 0"),
        ("no start: rank 1 on algo-2 waits", "WARNING no start: rank 1 on algo-2 waits"),
        ("rank 11 on algo-2 waits", "WARNING rank 1: rank 11 on algo-2 waits"),
        ("slow: rank 0 waits for rank 1", "WARNING rank 1: slow: rank 0 waits for rank 1"),
    ],
)
def test_a_rank_that_the_text_names_is_not_named_twice(text: str, line: str) -> None:
    form = LogFormat("rank 1", named_from=logging.WARNING, modules=False)
    assert form.format(record(logging.WARNING, text)).endswith(f" {line}")


def test_programs_around_the_ranks_are_named_in_each_line() -> None:
    form = LogFormat("smddp", named_from=logging.INFO, modules=False)
    for text in ("starting 2 ranks", "smddp run starts 2 ranks"):
        assert form.format(record(logging.INFO, text)).endswith(f" smddp: {text}")
