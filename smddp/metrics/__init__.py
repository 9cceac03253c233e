"""What a run tells of itself: metric lines, running means, where a step's time goes, trackers, and a live line."""

from smddp.metrics.running_mean import RunningMean

__all__ = ["RunningMean"]
