"""Processing jobs: a program of the request's own on one or more hosts, between inputs from S3 and outputs to it."""

from __future__ import annotations

from estimators.local.engine.processing.operations import ProcessingOperations

__all__ = ["ProcessingOperations"]
