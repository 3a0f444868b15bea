"""``actstore extract`` and ``repair``: from a model and a text to a store, and whole again."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from actstore.cli.common import command
from actstore.wording import count

if TYPE_CHECKING:
    from actstore.corpus import Corpus
    from actstore.models import LanguageModel

EXTRACT_HELP = """\
examples:
  actstore extract HuggingFaceTB/SmolLM2-135M wiki.txt acts.zarr --bos '<|endoftext|>'
      one random token of every line, all layers of the residual stream
  actstore extract ./my-model talk.jsonl acts.zarr --positions all --layers 0,6,-1 --dtype float16
      every token, three layers, half the bytes
  actstore extract ./model.gguf texts/ acts.zarr --positions last
      the last token of every .txt file of a folder
  actstore extract gpt2 wiki.txt acts.zarr --dry-run
      what it would take: rows, bytes, files, memory, time; writes nothing
  actstore extract gpt2 wiki.txt acts.zarr --rank 0 --world-size 2
      half of the shards; another process, with --rank 1, does the others
  actstore extract gpt2 wiki.txt s3://bucket/acts.zarr
      to an object store; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and, for another
      server than Amazon's, AWS_ENDPOINT_URL say where and who

Interrupted?  The same command goes on where it stopped.  Done?  It returns at once.
"""

REPAIR_HELP = """\
example:
  actstore repair openai-community/gpt2 wiki.txt acts.zarr gpt2/wiki

Reads every byte of the run and computes the shards that are missing or bad, or whose journal entry
is lost, again, from the model and the text it was made from.  Coordinates, token ids and metadata
are planned again from the two, and put back where they prove to be what was written.  What is whole
is not touched.
"""


def add_extract(commands: Any) -> None:
    parser = command(
        commands,
        "extract",
        _extract,
        "Run a model over text and store its activations.",
        EXTRACT_HELP,
    )
    add = parser.add_argument
    _add_sources(parser)
    add("store", help="folder or URL of the store; made if it does not exist")
    add(
        "--sites",
        type=_names,
        action="extend",
        help="comma-separated, or repeated; default: resid, the residual stream",
    )
    add(
        "--layers",
        type=_integers,
        action="extend",
        help="comma-separated, or repeated; negative from the end; default: all",
    )
    add("--positions", default="random", help="random (default), all, last, every:N, mask")
    add("--per-document", type=int, default=1, metavar="K", help="positions drawn per document")
    add("--seed", type=int, default=0, help="of the draw; default 0")
    add(
        "--bos",
        default="tokenizer",
        help="tokenizer: as the tokenizer does (default); none; or a token to put in front",
    )
    add("--include-special", action="store_true", help="let special tokens be samples too")
    add("--max-length", type=int, help="the most tokens of a sequence, special ones included")
    add(
        "--overflow",
        default="truncate",
        choices=("truncate", "window"),
        help="past --max-length, cut (default) or run on in overlapping windows",
    )
    add("--stride", type=int, metavar="N", help="tokens between the starts of two windows")
    add(
        "--context",
        default="full",
        choices=("full", "prefix"),
        help="full: the whole sequence is run (default); prefix: only up to the sampled token",
    )
    add(
        "--dtype",
        default="auto",
        help="float32, float16, bfloat16, or int8 (off by at most 1/254 of a row's largest "
        "magnitude); default: the model's own",
    )
    add(
        "--codec",
        choices=("none", "zstd"),
        help="zstd: compress the rows, which saves 2 to 26%% of 16-bit ones and makes reading 2 to "
        "4 times slower; default: none, or what the run has",
    )
    add("--model-name", help="label of the model in the store")
    add("--corpus-name", help="label of the corpus in the store")
    add(
        "--shard-rows",
        type=int,
        metavar="N",
        help="samples written and committed together; default: about 1/32 of the run in whole "
        "thousands (1,024), at most 64 MB a file; a run of up to 1,024 samples is one shard",
    )
    add("--rank", type=int, metavar="R", help="this process is writer R of --world-size")
    add("--world-size", type=int, metavar="N", help="how many processes write the run's shards")
    add(
        "--append",
        action="store_true",
        help="the run exists and the text begins with what it was made from: add the rest",
    )
    add("--dry-run", action="store_true", help="say what it would take, and write nothing")
    add("--json", action="store_true", help="with --dry-run: one JSON object; else: the run's info")


def _extract(arguments: argparse.Namespace) -> int:
    from actstore.extraction import extract, plan_extraction

    options: dict[str, Any] = {
        "sites": arguments.sites or ["resid"],
        "layers": arguments.layers,
        "positions": arguments.positions,
        "dtype": arguments.dtype,
        "codec": arguments.codec,
        "model_name": arguments.model_name,
        "corpus_name": arguments.corpus_name,
        "shard_rows": arguments.shard_rows,
        "batch_tokens": arguments.batch_tokens,
        "progress": _progress(arguments),
        "seed": arguments.seed,
        "per_document": arguments.per_document,
        "bos": arguments.bos,
        "include_special": arguments.include_special,
        "max_length": arguments.max_length,
        "overflow": arguments.overflow,
        "stride": arguments.stride,
        "context": arguments.context,
    }
    corpus, model = _sources(arguments)
    if arguments.dry_run:
        forecast = plan_extraction(model, corpus, arguments.store, **options)
        print(json.dumps(forecast.to_dict(), indent=2) if arguments.json else forecast)
        return 0 if forecast.fits else 1
    run = extract(
        model,
        corpus,
        arguments.store,
        rank=arguments.rank,
        world_size=arguments.world_size,
        append=arguments.append,
        **options,
    )
    print(json.dumps(run.info(), indent=2, default=str) if arguments.json else run)
    return 0


def add_repair(commands: Any) -> None:
    parser = command(
        commands,
        "repair",
        _repair,
        "Read every byte of a run and make again what is missing or bad.",
        REPAIR_HELP,
    )
    _add_sources(parser)
    parser.add_argument("store", help="folder or URL of the store")
    parser.add_argument("run", nargs="?", help="MODEL/CORPUS; not needed where there is one run")
    parser.add_argument("--json", action="store_true", help="one JSON object: what was bad")


def _repair(arguments: argparse.Namespace) -> int:
    from actstore.cli.common import run_name
    from actstore.extraction import repair
    from actstore.store import verify_run
    from actstore.store.restoring import restore_root

    root = restore_root(arguments.store)
    name = run_name(arguments.store, arguments.run)
    bad = verify_run(arguments.store, *name, whole=True)
    if bad:
        corpus, model = _sources(arguments)
        repair(
            model,
            corpus,
            arguments.store,
            run=name,
            batch_tokens=arguments.batch_tokens,
            progress=_progress(arguments),
        )
        left = verify_run(arguments.store, *name, whole=True)
    else:
        left = []
    if arguments.json:
        told = {"found": [asdict(p) for p in bad], "left": [asdict(p) for p in left]}
        print(json.dumps({"run": "/".join(name), **told}, indent=2))
    else:
        for problem in bad:
            print(problem)
        if root:
            print(f"{arguments.store} has its own zarr.json again")
        print(f"{'/'.join(name)}: {count(len(bad), 'problem', 'no')} found, {len(left)} left")
        if left:
            print(
                "what is left cannot be made again: restore the run from a copy, or remove it "
                "(actstore rm) and extract it again"
            )
    return 1 if left else 0


def _add_sources(parser: Any) -> None:
    add = parser.add_argument
    add("model", help="hub id, folder, or .gguf file")
    add("corpus", help=".txt (a document per line), .jsonl, .parquet, or a folder of .txt files")
    add("--text-field", default="text", help="field that holds the text; default: text")
    add("--limit", type=int, help="read only so many documents")
    add("--device", help="cpu, cuda, mps, …; default: as transformers chooses")
    add("--compute-dtype", default="auto", help="dtype the model runs in; default: its own")
    add("--attn-implementation", help="eager, sdpa, …; default: as transformers chooses")
    add("--revision", help="of a hub model")
    add("--trust-remote-code", action="store_true", help="run code that the model's folder brings")
    add(
        "--batch-tokens",
        type=int,
        metavar="N",
        help="tokens of one forward pass, padding included; default: 1024 on a CPU, else 16384",
    )
    add("--quiet", action="store_true", help="no progress bar")


def _sources(arguments: argparse.Namespace) -> tuple[Corpus, LanguageModel]:
    from actstore.corpus import read_corpus
    from actstore.models import load_model

    corpus = read_corpus(
        arguments.corpus,
        name=getattr(arguments, "corpus_name", None),
        text_field=arguments.text_field,
        limit=arguments.limit,
    )
    model = load_model(
        arguments.model,
        name=getattr(arguments, "model_name", None),
        dtype=arguments.compute_dtype,
        device=arguments.device,
        attn_implementation=arguments.attn_implementation,
        revision=arguments.revision,
        trust_remote_code=arguments.trust_remote_code,
    )
    return corpus, model


def _progress(arguments: argparse.Namespace) -> bool | None:
    return False if arguments.quiet else None


def _names(text: str) -> list[str]:
    return text.split(",")


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a comma-separated list of numbers"
        ) from None
