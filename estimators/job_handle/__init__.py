"""The parts of the handle on a training job: events, metrics, the view of a running job, files and resume."""
