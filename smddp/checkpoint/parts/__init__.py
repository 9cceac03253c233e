"""Optimizers and schedules as parts of a checkpoint: saved by name, restored into changed scripts."""
