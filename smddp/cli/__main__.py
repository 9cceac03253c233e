"""``python -m smddp.cli``: the same as the ``smddp`` program."""

from smddp.cli.program import main

main()
