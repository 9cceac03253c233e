"""Starts the processes of a job on this machine: through torchrun's agent, mpirun, or several local nodes."""
