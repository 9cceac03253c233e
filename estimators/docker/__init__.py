"""Docker on this machine: what images, Local Mode and the local platform ask of it."""
