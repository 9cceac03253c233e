"""SageMaker's training jobs as a library: a CreateTrainingJob dict in, a DescribeTrainingJob dict out; no HTTP.

The way in is `engine.Engine`.
"""
