"""Entry points that start without importing keras_cg, because that imports NumPy, and takes a while."""
