"""Run a script on the pretend device: ``python -m tests.fakegpu [--capability 7.0] script.py ARGS``.

The script runs as ``python script.py ARGS`` would run it. The last line of standard output is one JSON object,
``{"fakegpu": {"h2d": 3, ...}}``, also when the script fails.
"""

import argparse
import json
import os
import runpy
import sys

from tests.fakegpu import CudaIsFake


def _capability(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def main() -> None:
    """Parse our own options, hand the rest to the script and run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakegpu")
    parser.add_argument("--capability", type=_capability, default=(8, 0), help="compute capability to claim, as major.minor")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(options.script))
    with CudaIsFake(options.capability) as gpu:
        try:
            runpy.run_path(options.script, run_name="__main__")
        finally:
            print(json.dumps({"fakegpu": dict(sorted(gpu.counts.items()))}), flush=True)


if __name__ == "__main__":
    main()
