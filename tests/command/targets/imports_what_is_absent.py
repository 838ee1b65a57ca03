import absent_module  # noqa: F401
