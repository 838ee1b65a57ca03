from . import planted  # noqa: F401
