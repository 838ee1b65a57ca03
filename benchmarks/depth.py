"""What a deep chain holds between forward and backward, beside a hand-written rule: `python -m benchmarks.depth`.

A million numbers in float32, 4 MB, in a chain of 10 and of 100 calls of log1pexp; prints the table of
docs/memory.md. `--backends torch` measures that one, `--depths 10 100 1000` those: 1,000 calls need up to 8 GB.
"""

from __future__ import annotations

import argparse
import os

from benchmarks.__main__ import BACKENDS, held
from benchmarks.measure import BY_HAND, OURS

SIZE = 1_000_000
BYTES = 4 * SIZE


def row(backend: str, contestant: str, depths: list[int]) -> str:
    """A row of the table: bytes for a call, and of all of them."""
    cells = []
    for depth in depths:
        arrays = held(backend, contestant, depth, SIZE)["held"]
        cells.append(f"{BYTES * arrays / depth / 1e6:.2f} MB, {BYTES * arrays / 1e6:,.0f} MB in all")
    return f"| {backend} | {contestant} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures what a deep chain holds between forward and backward.")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--depths", nargs="+", type=int, default=[10, 100])
    options = parser.parse_args()
    # glibc would put arrays of this size where others were freed, which the process then does not have more.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(SIZE)
    print(f"| backend | | {' | '.join(f'{depth:,} calls' for depth in options.depths)} |")
    print("|---|---" + "|---" * len(options.depths) + "|")
    for backend in options.backends:
        for contestant in (OURS, BY_HAND):
            print(row(backend, contestant, options.depths), flush=True)


if __name__ == "__main__":
    main()
