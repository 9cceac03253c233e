"""The result of a rehearsal, as text and as a notebook's table."""

from __future__ import annotations

from estimators.rehearsal import Rehearsal


def test_a_notebook_shows_a_table_of_what_the_text_says() -> None:
    rehearsal = Rehearsal(
        topology="1 × ml.g5.xlarge",
        ranks=1,
        runtime="PyTorch 2.8, Python 3.12",
        seconds=12.0,
        steps=40,
        resumed_at=20,
        metrics={"loss": 0.5},
        model_bytes=1000,
        checkpoint_bytes=2000,
        memory_bytes=3000,
        samples=("a sample of training",),
    )
    shown = rehearsal._repr_html_()
    assert shown.count("<tr") == 7
    for part in (
        "1 × ml.g5.xlarge, as 1 rank, with PyTorch 2.8, Python 3.12",
        "40 in 12 s",
        "resumed from the checkpoint of step 20",
        "loss 0.5",
        "a sample of training",
    ):
        assert part in shown
