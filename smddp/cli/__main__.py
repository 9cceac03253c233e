"""``python -m smddp.cli``: the same as the ``smddp`` program."""

from smddp.cli.app import main

main()
