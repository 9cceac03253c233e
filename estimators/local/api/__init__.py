"""SageMaker's API on HTTP: who may call (guard, signature), what is answered (training_jobs), and moto for the rest."""
