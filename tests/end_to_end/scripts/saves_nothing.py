"""Trains with a loop of its own, without the Trainer and its checkpoints."""

import smddp

print(f"nothing of {smddp.__name__} is used")
