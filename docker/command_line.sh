#!/bin/sh
# The command line; smddp is copied into the image, which makes no programs.
exec python -m smddp.cli "$@"
