from __future__ import annotations

import logging
from contextlib import ExitStack

from estimators.sdk.quiet import while_it_runs_a_job


def test_jobs_that_overlap_leave_the_log_as_it_was() -> None:
    sdk = logging.getLogger("sagemaker")
    before = sdk.level
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(while_it_runs_a_job())
        second.enter_context(while_it_runs_a_job())
        first.close()
        assert sdk.level == logging.CRITICAL
    assert sdk.level == before


def test_the_sdks_words_on_its_configuration_are_kept_back_though_it_gave_them_a_level() -> None:
    configuration = logging.getLogger("sagemaker.config")
    before = configuration.level
    configuration.setLevel(logging.INFO)
    try:
        with while_it_runs_a_job():
            assert not configuration.isEnabledFor(logging.INFO)
        assert configuration.level == logging.INFO
    finally:
        configuration.setLevel(before)
