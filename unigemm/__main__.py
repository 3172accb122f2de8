"""``python -m unigemm``: the command line where its script is not installed."""

from .cli.main import main

main()
