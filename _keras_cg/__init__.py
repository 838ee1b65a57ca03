"""The modules that start before keras_cg, and so must not import NumPy, which is slow."""
