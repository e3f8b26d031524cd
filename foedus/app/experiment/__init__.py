"""Experiments in a TOML file: reads and checks them, builds and runs them into run directories, compares and exports.

The commands of the command line are in `foedus.app.commands`, and the HTML report of a run is in `foedus.app.report`.
"""
