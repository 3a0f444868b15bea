"""Run benchmarks by name: ``python -m benchmarks [name ...] [options]``; all without a name."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from benchmarks import harness

ALSO = ("__init__", "__main__", "baselines", "harness", "streams")


def main() -> None:
    """Run each benchmark named, or all, with the options given."""
    names = sorted(
        path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ALSO
    )
    chosen = [argument for argument in sys.argv[1:] if argument in names]
    options = [argument for argument in sys.argv[1:] if argument not in names]
    if not chosen and any(option in ("-h", "--help") for option in options):
        raise SystemExit(f"{__doc__}\nbenchmarks: {', '.join(names)}")
    harness.at_full_speed()
    print(harness.machine())
    for name in chosen or names:
        print(f"\n{name}")
        import_module(f"benchmarks.{name}").main(options if chosen else [])


if __name__ == "__main__":
    main()
