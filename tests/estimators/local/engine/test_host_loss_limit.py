"""How often a spot job begins again."""

from __future__ import annotations

from estimators.local.engine.ending import Ending, HostLossLimit


def test_losses_in_a_row_with_nothing_new_are_too_many_and_anything_else_begins_the_row_anew() -> None:
    loss_limit = HostLossLimit()
    attempts = [
        (Ending.LOST, False, False),
        (Ending.LOST, False, False),
        (Ending.LOST, True, False),
        (Ending.LOST, False, False),
        (Ending.LOST, False, False),
        (Ending.INTERRUPT, False, False),
        (Ending.LOST, False, False),
        (Ending.LOST, False, False),
        (Ending.LOST, False, True),
    ]
    for ending, progressed, too_many in attempts:
        assert loss_limit.too_many(ending, progressed=progressed) is too_many
