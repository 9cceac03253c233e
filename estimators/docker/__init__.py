"""The local Docker engine, for training images, local jobs and the local platform."""
