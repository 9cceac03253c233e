"""``smddp migrate``: a submit script of the SageMaker SDK, rewritten for `estimators.Estimator`."""
