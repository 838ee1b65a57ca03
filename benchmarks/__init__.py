"""What the decorator costs, beside everything else that gives a function a gradient: `python -m benchmarks`."""
