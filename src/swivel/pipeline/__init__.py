"""What the Python API and the command line call: a module per verb, and what several of them share."""
