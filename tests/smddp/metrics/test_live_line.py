import pytest

from smddp.metrics.live_line import LiveLine, LiveRun


class Watched:
    """A run whose steps and clock the test moves."""

    def __init__(self, **options: object) -> None:
        self.now, self.steps, self.checkpoint = 100.0, 0, None
        self.run = LiveRun(
            steps=lambda: self.steps,
            epoch=lambda: 3,
            newest_checkpoint=lambda: self.checkpoint,
            memory=lambda: 3 << 29,
            **options,  # type: ignore[arg-type]
        )
        self.line = LiveLine(self.run, clock=lambda: self.now)
        self.line.text(80)

    def after(self, seconds: float, steps: int, columns: int = 160) -> str:
        self.now += seconds
        self.steps += steps
        return self.line.text(columns)


def test_a_line_tells_how_far_how_fast_and_until_when() -> None:
    watched = Watched(total=1000, samples_a_step=256)
    watched.run.metrics = {"loss": 0.12345, "lr": 0.1, "time_data": 0.031}
    watched.checkpoint = 0  # type: ignore[assignment]
    watched.after(0, 0)
    line = watched.after(10, 200)
    assert line == (
        "epoch 3  step 200/1000  loss 0.1235  5120 samples/s  ETA 40 s  1.5 GiB  checkpoint 10 s ago  data 3%"
    )


def test_the_next_checkpoint_is_the_first_that_clock_or_steps_ask_for() -> None:
    watched = Watched(checkpoint_seconds=300.0, checkpoint_steps=500)
    assert watched.after(10, 10).endswith("checkpoint in 4:50 min")
    watched.checkpoint = 7  # type: ignore[assignment]
    assert watched.after(10, 390).endswith("checkpoint 0 s ago, next in 5 s")
    assert Watched(checkpoint_seconds=60.0).after(100, 10).endswith("checkpoint in 0 s")


def test_what_is_not_known_is_left_out() -> None:
    assert Watched().after(4, 10) == "epoch 3  step 10  2.5 steps/s  1.5 GiB"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (20, "step 200/1000"),
        (39, "epoch 3  step 200/1000  loss 0.5"),
        (79, "epoch 3  step 200/1000  loss 0.5  5120 samples/s  ETA 40 s  1.5 GiB"),
    ],
)
def test_a_narrow_terminal_shows_what_matters_most(columns: int, expected: str) -> None:
    watched = Watched(total=1000, samples_a_step=256)
    watched.run.metrics = {"loss": 0.5}
    watched.checkpoint = 7  # type: ignore[assignment]
    assert watched.after(10, 200, columns) == expected


def test_the_speed_is_that_of_the_last_half_minute() -> None:
    watched = Watched(total=100_000)
    for _ in range(10):
        watched.after(10, 1)
    for _ in range(4):
        line = watched.after(10, 1000)
    assert "100 steps/s" in line
    assert "ETA 15:59 min" in line
