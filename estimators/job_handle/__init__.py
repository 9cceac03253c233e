"""The parts of the handle on a training job: events, metrics, live status, files and resume."""
