"""What users call: `solve`, estimators, experiments in a file, reports, and the command line; it computes no round."""
