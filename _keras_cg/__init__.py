"""What starts before keras_cg does: importing that imports NumPy, and takes a while."""
