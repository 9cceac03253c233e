# Every bash of the image reads this first (BASH_ENV). Where bash is the container's first process, as SDK V3 makes it, a
# stop would never reach the script: smddp.container.init takes its place, and bash runs below it.
if [ $$ = 1 ] && [ -n "$BASH_EXECUTION_STRING" ]; then
  exec python -m smddp.container.init /bin/bash -c "$BASH_EXECUTION_STRING" "$0" "$@"
fi
