"""`python -m swivel` is the command line."""

from swivel.cli import main

if __name__ == "__main__":
    main()
