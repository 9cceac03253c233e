"""The options of the watchdog."""

from __future__ import annotations

from typing import Any

import pytest

from smddp.watch import Watch


@pytest.mark.parametrize("after", [0, 0.5, True, "30", float("inf"), float("nan")])
def test_seconds_are_at_least_one(after: Any) -> None:
    with pytest.raises(ValueError, match="Give seconds, 1 or more"):
        Watch(after=after)


@pytest.mark.parametrize("patience", [-1, True, None, float("inf")])
def test_patience_is_seconds(patience: Any) -> None:
    with pytest.raises(ValueError, match="Give seconds, 0 or more"):
        Watch(patience=patience)


def test_what_happens_on_a_hang_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="Give 'fail', 'report' or 'restart'"):
        Watch(on_hang="stop")  # type: ignore[arg-type]


def test_a_job_without_restarts_can_not_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_MAX_RESTARTS", raising=False)
    with pytest.raises(ValueError, match=r"this job has no restarts\. Give `smddp run --max-restarts 3`"):
        Watch.of(Watch(on_hang="restart"))
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    assert Watch.of(Watch(on_hang="restart")) == Watch(on_hang="restart")


def test_watch_is_on_off_or_options() -> None:
    assert Watch.of(False) is None
    assert Watch.of(True) == Watch()
    assert Watch.of(Watch(after=5)) == Watch(after=5)
    with pytest.raises(ValueError, match=r"watch='yes'. Give True, False or smddp.Watch"):
        Watch.of("yes")  # type: ignore[arg-type]
