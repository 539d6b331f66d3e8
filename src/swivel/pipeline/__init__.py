"""One module or package per verb: what the Python API and the command line call."""
