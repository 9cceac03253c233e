"""Export the job of a submit script for a platform other than SageMaker, as a file that runs the same training."""
