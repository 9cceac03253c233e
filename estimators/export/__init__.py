"""A job for another platform than SageMaker: what a submit script would send, as a file that runs the same training."""
