"""The main job, for real: two hosts, a spot interruption, a resume, a model. Behind ``smddp demo``."""
