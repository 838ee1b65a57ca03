"""A module without a custom gradient."""
