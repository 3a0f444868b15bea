"""``actstore extract``: from a model and a text to a store."""

from __future__ import annotations

import argparse
from typing import Any

from actstore.cli.common import command

EXTRACT_HELP = """\
examples:
  actstore extract HuggingFaceTB/SmolLM2-135M wiki.txt acts.zarr --bos '<|endoftext|>'
      one random token of every line, all layers of the residual stream
  actstore extract ./my-model talk.jsonl acts.zarr --positions all --layers 0,6,-1 --dtype float16
      every token, three layers, half the bytes
  actstore extract ./model.gguf texts/ acts.zarr --positions last
      the last token of every .txt file of a folder

Interrupted?  The same command goes on where it stopped.  Done?  It returns at once.
"""


def add_extract(commands: Any) -> None:
    add = command(
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


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a comma-separated list of numbers"
        ) from None
