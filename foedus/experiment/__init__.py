"""Experiments stated in a TOML file: read and checked, built, run into run directories, compared."""
