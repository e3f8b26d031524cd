"""What every room uses: the one exception, whole files, trees of arrays, settings and their checks, JAX's settings."""
