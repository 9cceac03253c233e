"""SageMaker's API over HTTP: access (guard, signature), the engine's answers (training_jobs), and moto for the rest."""
