"""Questions about Keras that do not import it, and its state while a function runs."""
