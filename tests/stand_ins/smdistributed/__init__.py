"""Stands in for Amazon's package of this name, which is on no index: only what a training job touches, over gloo."""
