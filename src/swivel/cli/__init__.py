"""The command line: `main` has the entry point and the most used commands, and imports others when they are used."""

from swivel.cli.main import cli, main

__all__ = ["cli", "main"]
