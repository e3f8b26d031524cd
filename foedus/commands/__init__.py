"""The commands, one file a part; `foedus/cli.py` registers them."""
