"""mlx as a backend of keras_cg."""

__version__ = "0.1.0"
