"""Docker on this machine: what images, local jobs and the local platform ask of it."""
