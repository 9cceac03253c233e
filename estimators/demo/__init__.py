"""``smddp demo``: a real job on two hosts, with a spot interruption, a resume and a model."""
