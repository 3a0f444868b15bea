"""The command line: ``actstore extract · ls · info · verify · fit · report``.

A thin layer above both packages. Bad input is one line on stderr and exit code 2; an
interruption is exit code 130, and what was committed stays.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actstore import __version__
from actstore.errors import ActstoreError, SelectionError

if TYPE_CHECKING:
    from actstore.store import Run

EXTRACT_HELP = """\
examples:
  actstore extract HuggingFaceTB/SmolLM2-135M wiki.txt acts.zarr --bos '<|endoftext|>'
      one random token of every line, all layers of the residual stream
  actstore extract ./my-model reviews.jsonl acts.zarr --positions all --layers 0,6,-1 --dtype float16
      every token, three layers, half the bytes
  actstore extract ./model.gguf texts/ acts.zarr --positions last
      the last token of every .txt file of a folder

Interrupted?  The same command goes on where it stopped.  Done?  It returns at once.
"""

FIT_HELP = """\
examples:
  actstore fit acts.zarr gpt2/wiki -o maps.safetensors --holdout 0.25 --by article
      every layer to every later one; r² on a quarter of the articles, held out whole
  actstore fit acts.zarr gpt2/wiki -o maps.safetensors --evaluate gpt2/news
      the same, evaluated on another corpus
"""

REPORT_HELP = """\
example:
  actstore report acts.zarr gpt2/wiki --model openai-community/gpt2 --holdout 0.25 -o report.html
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        0 done; 1 `verify` found problems; 2 bad input; 130 interrupted.
    """
    arguments = _parser().parse_args(argv)
    arguments.command_line = shlex.join(["actstore", *(sys.argv[1:] if argv is None else argv)])
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except ActstoreError as error:
        print(f"actstore: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("actstore: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="actstore",
        description="Store transformer activations on disk, labelled, and study them.",
        epilog="'actstore COMMAND --help' explains a command and gives examples.",
    )
    parser.add_argument("--version", action="version", version=f"actstore {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_extract(commands)
    _add_ls(commands)
    _add_info(commands)
    _add_verify(commands)
    _add_fit(commands)
    _add_report(commands)
    return parser


def _command(commands: Any, name: str, run: Callable[..., int], text: str, epilog: str = "") -> Any:
    parser = commands.add_parser(
        name,
        help=text[0].lower() + text[1:].rstrip("."),
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=run)
    return parser


def _add_extract(commands: Any) -> None:
    add = _command(
        commands,
        "extract",
        _extract,
        "Run a model over text and store its activations.",
        EXTRACT_HELP,
    ).add_argument
    add("model", help="hub id, folder, or .gguf file")
    add("corpus", help=".txt (a document per line), .jsonl, .parquet, or a folder of .txt files")
    add("store", help="folder of the store; made if it does not exist")
    add("--sites", default="resid", help="comma-separated; default: resid, the residual stream")
    add("--layers", type=_integers, help="comma-separated, negative from the end; default: all")
    add("--positions", default="random", help="random (default), all, last")
    add("--per-document", type=int, default=1, metavar="K", help="positions drawn per document")
    add("--seed", type=int, default=0, help="of the draw; default 0")
    add(
        "--bos",
        default="tokenizer",
        help="tokenizer: as the tokenizer does (default); none; or a token to put in front",
    )
    add("--include-special", action="store_true", help="let special tokens be samples too")
    add("--max-length", type=int, help="cut documents after so many tokens")
    add("--dtype", default="auto", help="float32, float16, bfloat16; default: the model's own")
    add("--model-name", help="label of the model in the store")
    add("--corpus-name", help="label of the corpus in the store")
    add("--text-field", default="text", help="field that holds the text; default: text")
    add("--limit", type=int, help="read only so many documents")
    add("--device", help="cpu, cuda, mps, …; default: as transformers chooses")
    add("--compute-dtype", default="auto", help="dtype the model runs in; default: its own")
    add("--revision", help="of a hub model")
    add("--trust-remote-code", action="store_true", help="run code that the model's folder brings")
    add("--quiet", action="store_true", help="no progress bar")


def _extract(arguments: argparse.Namespace) -> int:
    from actstore.corpus import read_corpus
    from actstore.extraction import extract
    from actstore.models import load_model

    progress = False if arguments.quiet else None
    corpus = read_corpus(
        arguments.corpus,
        name=arguments.corpus_name,
        text_field=arguments.text_field,
        limit=arguments.limit,
    )
    model = load_model(
        arguments.model,
        name=arguments.model_name,
        dtype=arguments.compute_dtype,
        device=arguments.device,
        revision=arguments.revision,
        trust_remote_code=arguments.trust_remote_code,
    )
    run = extract(
        model,
        corpus,
        arguments.store,
        sites=arguments.sites.split(","),
        layers=arguments.layers,
        positions=arguments.positions,
        dtype=arguments.dtype,
        progress=progress,
        seed=arguments.seed,
        per_document=arguments.per_document,
        bos=arguments.bos,
        include_special=arguments.include_special,
        max_length=arguments.max_length,
    )
    print(run)
    return 0


def _add_ls(commands: Any) -> None:
    parser = _command(commands, "ls", _ls, "List the runs of a store.")
    parser.add_argument("store")
    parser.add_argument("--json", action="store_true", help="one JSON list")


def _ls(arguments: argparse.Namespace) -> int:
    from actstore.store import open

    store = open(arguments.store)
    if not arguments.json:
        print(store)
        return 0
    rows = []
    for row in store.table():
        try:
            info = store[row["model"], row["corpus"]].info()
        except ActstoreError as error:
            info = {**row, "problem": str(error)}
        rows.append({name: value for name, value in info.items() if name not in ("key", "info")})
    print(json.dumps(rows, indent=2))
    return 0


def _add_info(commands: Any) -> None:
    parser = _command(commands, "info", _info, "Show what a run holds and what it was made from.")
    _add_run(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _info(arguments: argparse.Namespace) -> int:
    run = _run(arguments.store, arguments.run)
    if arguments.json:
        print(json.dumps(run.info(), indent=2, default=str))
    else:
        print(run)
        print()
        _print_tree(run.info())
    return 0


def _print_tree(values: dict[str, Any], indent: str = "") -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            print(f"{indent}{key}:")
            _print_tree(value, indent + "  ")
        else:
            print(f"{indent}{key}: {value}")


def _add_verify(commands: Any) -> None:
    parser = _command(
        commands,
        "verify",
        _verify,
        "Read every byte of a store and list all problems; exit code 1 if there are any.",
    )
    _add_run(parser)
    parser.add_argument("--json", action="store_true", help="one JSON list of the problems")


def _verify(arguments: argparse.Namespace) -> int:
    from actstore.store import open

    store = open(arguments.store)
    names = [f"{model}/{corpus}" for model, corpus in store]
    if arguments.run is not None:
        names = [_known(arguments.store, names, arguments.run)]
    problems = [problem for problem in store.verify() if problem.run in names]
    if arguments.json:
        print(json.dumps([asdict(problem) for problem in problems], indent=2))
    else:
        for problem in problems:
            print(problem)
        print(f"{_count(len(names), 'run')} read, {_count(len(problems), 'problem')}")
    return 1 if problems else 0


def _count(number: int, thing: str) -> str:
    return f"{number or 'no'} {thing}{'' if number == 1 else 's'}"


def _add_fit(commands: Any) -> None:
    parser = _command(
        commands,
        "fit",
        _fit,
        "Fit linear maps between all pairs of layers and score them.",
        FIT_HELP,
    )
    _add_run(parser)
    _add_evaluation(parser)
    add = parser.add_argument
    add("-o", "--output", required=True, type=Path, help="file for the maps (safetensors)")
    add("--pairs", default="all", choices=("all", "adjacent", "to_last"), help="default: all i < j")
    add("--ridge", type=float, default=0.0, help="α of ridge regression; default 0")
    add("--intercept", action="store_true", help="fit an intercept (the paper does not)")
    add("--memory", help="budget of the Gram, such as 4GiB")
    add("--quiet", action="store_true", help="no progress bar")


def _fit(arguments: argparse.Namespace) -> int:
    from actstore.fitting import fit
    from actstore.grams import gram
    from analysis.r2 import heat_maps

    progress = False if arguments.quiet else None
    train, held_out = _train_and_evaluation(arguments)
    maps = fit(
        gram(train, memory=arguments.memory, progress=progress),
        pairs=arguments.pairs,
        ridge=arguments.ridge,
        intercept=arguments.intercept,
    )
    maps.save(arguments.output)
    print(maps)
    if held_out is not None:
        r2 = heat_maps(maps, gram(held_out, memory=arguments.memory, progress=progress)).r2
        for shortcut in r2.shortcut.values.tolist():
            print(f"mean r² over pairs, {shortcut}: {float(r2.sel(shortcut=shortcut).mean()):.4f}")
    print(f"saved to {arguments.output}")
    return 0


def _add_report(commands: Any) -> None:
    parser = _command(
        commands,
        "report",
        _report,
        "Write one self-contained HTML file: r² heat maps, prediction curves, decoded tokens.",
        REPORT_HELP,
    )
    _add_run(parser)
    _add_evaluation(parser)
    add = parser.add_argument
    add("-o", "--output", required=True, type=Path, help="the HTML file")
    add("--model", help="hub id or folder; without it, sections that decode tokens are left out")
    add("--maps", type=Path, help="maps saved by 'actstore fit'; fitted anew by default")
    add("--quiet", action="store_true", help="no progress bar")


def _report(arguments: argparse.Namespace) -> int:
    from actstore.fitting import fit, load_maps
    from actstore.store import open
    from analysis import prediction, r2, report

    progress = False if arguments.quiet else None
    train, held_out = _train_and_evaluation(arguments)
    if held_out is None:
        raise SelectionError(
            "nothing to evaluate on; --holdout 0.25 keeps a quarter of the documents for it, "
            "--evaluate MODEL/CORPUS takes another run"
        )
    maps = (
        load_maps(arguments.maps) if arguments.maps is not None else fit(train, progress=progress)
    )
    found = [r2.heat_maps(maps, held_out, progress=progress)]
    if arguments.model is not None:
        from actstore.models import load_model

        model = load_model(arguments.model, name=held_out.model)
        cluster = arguments.by
        found.append(prediction.curves(held_out, maps, model, cluster=cluster, progress=progress))
        found.append(prediction.peek(held_out, maps, model, range(min(5, held_out.n_samples))))
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


def _add_run(parser: Any) -> None:
    parser.add_argument("store", help="folder of the store")
    parser.add_argument("run", nargs="?", help="MODEL/CORPUS; not needed where there is one run")


def _add_evaluation(parser: Any) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--evaluate", metavar="MODEL/CORPUS", help="run to evaluate on")
    group.add_argument("--holdout", type=float, metavar="SHARE", help="share of samples held out")
    parser.add_argument(
        "--by", default="document", help="what is held out whole; default: document"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the split; default 0")


def _train_and_evaluation(arguments: argparse.Namespace) -> tuple[Run, Run | None]:
    run = _run(arguments.store, arguments.run)
    if arguments.holdout is not None:
        return run.split(arguments.holdout, by=arguments.by, seed=arguments.seed)
    if arguments.evaluate is not None:
        return run, _run(arguments.store, arguments.evaluate)
    return run, None


def _run(store_path: str, spec: str | None) -> Run:
    from actstore.store import open

    store = open(store_path)
    names = [f"{model}/{corpus}" for model, corpus in store]
    if spec is None:
        if len(names) != 1:
            raise SelectionError(
                f"{store_path} holds {len(names)} runs; name one of: {', '.join(names) or 'none'}"
            )
        spec = names[0]
    model, corpus = _known(store_path, names, spec).split("/")
    return store[model, corpus]


def _known(store_path: str, names: list[str], spec: str) -> str:
    if spec not in names:
        raise SelectionError(
            f"no run {spec!r} in {store_path}; it has: {', '.join(names) or 'none'}"
        )
    return spec


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a comma-separated list of numbers"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
