"""The parts of the command line, one file each; `foedus/cli.py` registers them."""
