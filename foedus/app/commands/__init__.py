"""The commands of the command line, one file a topic; `foedus.app.cli` registers them, and other rooms do the work."""
