"""Which layers of a model are alike, and how many directions each uses, from its store:
``python -m examples.similarity STORE MODEL/CORPUS [MODEL/CORPUS]``.

One run: all pairs of its layers (linear CKA, SVCCA, Procrustes), and the spectrum of each layer.
Two runs: their layers against each other on the samples they share. One HTML file to look at; the
store that ``make demo`` leaves in demo-output is a good one to try it on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import actstore
from analysis import report, results, similarity, spectra


def main() -> None:
    """Compute, save, and write the report."""
    options = _options()
    store = actstore.open(options.store)
    runs = [store[name] for name in options.runs]
    if options.limit:
        runs = [run.isel(sample=slice(options.limit)) for run in runs]
    if options.layers:
        runs = [run.sel(layer=options.layers) for run in runs]
    found = [similarity.layers(*runs, measures=options.measures), *map(spectra.layers, runs)]
    for number, dataset in enumerate(found):
        results.save(dataset, options.output / f"{dataset.attrs['kind']}-{number}.zarr")
    page = report.build(
        options.output / "report.html",
        found,
        store=store,
        title="Which layers are alike?",
        command="python -m examples.similarity",
    )
    print(*report.findings(found), f"report  {page}", sep="\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add = parser.add_argument
    add("store", help="folder or URL of a store")
    add("runs", nargs="+", metavar="MODEL/CORPUS", help="one run, or two of the same corpus")
    add("--output", type=Path, default=Path("similarity-output"), help="folder to fill")
    add("--limit", type=int, help="samples, for a quick look")
    add("--layers", type=int, nargs="*", help="default: all")
    add(
        "--measures",
        nargs="*",
        default=["cka", "svcca", "procrustes"],
        choices=similarity.MEASURES,
    )
    options = parser.parse_args()
    if len(options.runs) > 2:
        parser.error("one run or two are compared")
    return options


if __name__ == "__main__":
    main()
