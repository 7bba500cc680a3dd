"""`python -m regbayes`: the command line."""

from .cli import command

command()
