"""``actstore fit`` and ``report``: maps between layers, and what they show."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actstore.cli.common import add_evaluation, add_run, command, train_and_evaluation
from actstore.errors import FitError, SelectionError
from actstore.wording import count

if TYPE_CHECKING:
    from actstore.store import Run

FIT_HELP = """\
examples:
  actstore fit acts.zarr gpt2/wiki -o maps.safetensors --holdout 0.25 --by article
      every layer to every later one; r² on a quarter of the articles, held out whole
  actstore fit acts.zarr gpt2/wiki -o maps.safetensors --evaluate gpt2/news
      the same, evaluated on another corpus
  actstore fit acts.zarr gpt2/wiki --memory 2GiB --dry-run
      passes over the rows, operations, bytes read and peak memory; computes nothing
"""

REPORT_HELP = """\
examples:
  actstore report acts.zarr gpt2/wiki --model openai-community/gpt2 --holdout 0.25 -o report.html
      where the store holds the model on other corpora too, maps are carried between all of them
  actstore report acts.zarr gpt2/wiki --holdout 0.25 --results results/ -o report.html
      with the results that analysis.results.save wrote to a folder
"""


def add_fit(commands: Any) -> None:
    parser = command(
        commands,
        "fit",
        _fit,
        "Fit linear maps between all pairs of layers and score them.",
        FIT_HELP,
    )
    add_run(parser)
    add_evaluation(parser)
    add = parser.add_argument
    add("-o", "--output", type=Path, help="file for the maps (safetensors)")
    add("--dry-run", action="store_true", help="say what the Gram would take, and compute nothing")
    add("--pairs", default="all", choices=("all", "adjacent", "to_last"), help="default: all i < j")
    add("--ridge", type=float, default=0.0, help="α of ridge regression; default 0")
    add("--intercept", action="store_true", help="fit an intercept (the paper does not)")
    add("--memory", help="budget of the Gram, such as 4GiB")
    add("--workers", type=int, help="with --dry-run: tasks at a time, as on a cluster's threads")
    add("--quiet", action="store_true", help="no progress bar")


def _fit(arguments: argparse.Namespace) -> int:
    from actstore.fitting import fit
    from actstore.grams import gram, plan_gram
    from analysis.r2 import heat_maps

    progress = False if arguments.quiet else None
    train, held_out = train_and_evaluation(arguments)
    if arguments.dry_run:
        plan = plan_gram(
            train,
            pairs=arguments.pairs,
            memory=arguments.memory,
            workers=arguments.workers,
        )
        print(plan.describe())
        return 0
    if arguments.workers is not None:
        raise FitError("--workers goes with --dry-run; gram(run, client=...) runs on a cluster")
    if arguments.output is None:
        raise FitError("no file for the maps; -o maps.safetensors names one, --dry-run needs none")
    maps = fit(
        gram(train, pairs=arguments.pairs, memory=arguments.memory, progress=progress),
        pairs=arguments.pairs,
        ridge=arguments.ridge,
        intercept=arguments.intercept,
    )
    maps.save(arguments.output)
    print(maps)
    if held_out is not None:
        judged = gram(held_out, pairs=arguments.pairs, memory=arguments.memory, progress=progress)
        r2 = heat_maps(maps, judged).r2
        for shortcut in r2.shortcut.values.tolist():
            print(f"mean r² over pairs, {shortcut}: {float(r2.sel(shortcut=shortcut).mean()):.4f}")
    print(f"saved to {arguments.output}")
    return 0


def add_report(commands: Any) -> None:
    parser = command(
        commands,
        "report",
        _report,
        "Write one self-contained HTML file: r², prediction curves, early exit, transfer, tokens.",
        REPORT_HELP,
    )
    add_run(parser)
    add_evaluation(parser)
    add = parser.add_argument
    add("-o", "--output", required=True, type=Path, help="the HTML file")
    add("--model", help="hub id or folder; without it, sections that decode tokens are left out")
    add("--maps", type=Path, help="maps saved by 'actstore fit'; fitted anew by default")
    add("--results", type=Path, help="folder of saved results to show as well")
    add("--quiet", action="store_true", help="no progress bar")


def _report(arguments: argparse.Namespace) -> int:
    from actstore.fitting import fit, load_maps
    from actstore.store import open
    from analysis import early_exit, prediction, r2, report, results

    progress = False if arguments.quiet else None
    train, held_out = train_and_evaluation(arguments)
    if held_out is None:
        raise SelectionError(
            "nothing to evaluate on; --holdout 0.25 keeps a quarter of the documents for it, "
            "--evaluate MODEL/CORPUS takes another run"
        )
    folder = arguments.results
    if folder is not None and not folder.is_dir():
        raise SelectionError(f"no folder of results at {folder}")
    saved = [] if folder is None else [results.load(path) for path in sorted(folder.glob("*.zarr"))]
    maps = (
        load_maps(arguments.maps) if arguments.maps is not None else fit(train, progress=progress)
    )
    found = [r2.heat_maps(maps, held_out, progress=progress)]
    if arguments.model is not None:
        from actstore.models import load_model

        model = load_model(arguments.model)
        cluster = arguments.by
        found.append(prediction.curves(held_out, maps, model, cluster=cluster, progress=progress))
        found.append(early_exit.sweep(held_out, maps, model, cluster=cluster, progress=progress))
        found.append(prediction.peek(held_out, maps, model, range(min(5, held_out.n_samples))))
    else:
        model = None
    found += _transfer(arguments, train, held_out, maps, model, progress)
    found += saved
    page = report.build(
        arguments.output,
        found,
        store=open(arguments.store),
        title=f"{held_out.model}: short cuts between layers",
        command=arguments.command_line,
    )
    print(*report.findings(found), sep="\n")
    print(f"saved to {page}")
    return 0


def _transfer(
    arguments: argparse.Namespace, train: Run, held_out: Run, maps: Any, model: Any, progress: Any
) -> list[Any]:
    """Maps of every corpus of this model on every other's held-out part, if there are several."""
    from actstore.fitting import fit
    from actstore.store import open
    from analysis import transfer

    if arguments.holdout is None:
        return []
    fitted, runs = {train.corpus: maps}, {train.corpus: held_out}
    seen = _texts(train) | _texts(held_out)
    for (owner, corpus), run in open(arguments.store).items():
        alike = owner == train.model and run.sites.get("resid") == train.sites.get("resid")
        if corpus == train.corpus or not alike or arguments.by not in run.samples.coords:
            continue
        texts = _texts(run)
        if not seen.isdisjoint(texts):
            print(
                f"{run.name} shares {count(len(seen & texts), 'text')} with the corpora before "
                "it: left out "
                "of the transfer, which would be measured on what was fitted",
                file=sys.stderr,
            )
            continue
        seen |= texts
        rest, runs[corpus] = run.split(arguments.holdout, by=arguments.by, seed=arguments.seed)
        fitted[corpus] = fit(rest, pairs="to_last", progress=progress)
    if len(runs) == 1:
        return []
    found = [transfer.r2(fitted, runs, cluster=arguments.by)]
    if model is not None:
        found.append(
            transfer.predictions(fitted, runs, model, cluster=arguments.by, progress=progress)
        )
    return found


def _texts(run: Run) -> set[bytes]:
    """What was run, each sequence once."""
    return {ids.tobytes() for ids in run.input_ids(np.unique(run.coordinate("sequence")))}
