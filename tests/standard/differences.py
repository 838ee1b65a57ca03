"""What does not do as array-api-strict does, and why: a function that is here and does, fails its test."""

_UINT64 = "int64 for unsigned integers, because torch does not compute with uint64"

DIFFERENCES = {
    ("torch", "cumulative_prod"): _UINT64,
    ("torch", "cumulative_sum"): _UINT64,
    ("torch", "linalg.trace"): _UINT64,
    ("torch", "prod"): _UINT64,
    ("torch", "sum"): _UINT64,
}

# What has no gradient on a backend, and raises an error that names both; wherever else there is one.
NO_GRADIENT = {
    ("numpy", "linalg.qr"): "no gradient",
    ("numpy", "linalg.svd"): "no gradient of full matrices that are not square",
    ("numpy", "nextafter"): "no gradient",
    ("tensorflow", "cumulative_prod"): "the axis needs a size that is known in the graph",
    ("tensorflow", "unstack"): "the axis needs a size that is known in the graph",
}
