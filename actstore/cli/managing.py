"""``actstore rm`` and ``mv``: runs removed for good, or given other names."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from actstore.cli.common import command, run_name
from actstore.errors import SelectionError
from actstore.wording import count

RM_HELP = """\
On a terminal it asks first; elsewhere it removes nothing without --yes.
"""


def add_rm(commands: Any) -> None:
    parser = command(commands, "rm", _rm, "Remove a run for good.", RM_HELP)
    parser.add_argument("store", help="folder or URL of the store")
    parser.add_argument("run", help="MODEL/CORPUS")
    parser.add_argument(
        "--cache",
        action="store_true",
        help="remove only what was computed from the run, which is computed again when needed",
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="one JSON object: what was removed")


def _rm(arguments: argparse.Namespace) -> int:
    from actstore.store import open

    store = open(arguments.store)
    name = run_name(arguments.store, arguments.run)
    if arguments.cache:
        return _rm_cache(arguments, store[name])
    row = next(row for row in store.table() if (row["model"], row["corpus"]) == name)
    samples = row["samples"] or "?"
    told = (
        f"{arguments.run} ({samples} sample{'' if samples == '1' else 's'}, {row['size'] or '?'})"
    )
    if not arguments.yes and not _confirmed(f"remove {told} for good?"):
        print(f"{told} is left as it is")
        return 1
    store.remove(*name)
    print(json.dumps({"removed": arguments.run}) if arguments.json else f"removed {told}")
    return 0


def _rm_cache(arguments: argparse.Namespace, run: Any) -> int:
    from actstore.store.table import human_bytes

    held = run.cache
    size = human_bytes(sum(held.values()))
    told = f"{count(len(held), 'thing', 'no')} ({size}) computed from {run.name}"
    if held and not arguments.yes and not _confirmed(f"remove {told}?"):
        print(f"{told} left")
        return 1
    freed = run.clear_cache()
    if arguments.json:
        print(json.dumps({"removed": list(held), "freed": freed}))
    else:
        print(f"removed {told}" if held else f"nothing was kept beside {run.name}")
    return 0


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise SelectionError(f"{question} There is no terminal to answer on: say --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def add_mv(commands: Any) -> None:
    parser = command(
        commands,
        "mv",
        _mv,
        "Give a run another name; what was computed from it stays valid.",
        "example:\n  actstore mv acts.zarr gpt2/wiki gpt2-small/wikipedia\n",
    )
    parser.add_argument("store", help="folder or URL of the store")
    parser.add_argument("run", help="MODEL/CORPUS")
    parser.add_argument("to", help="its new MODEL/CORPUS")
    parser.add_argument("--json", action="store_true", help="one JSON object: old and new name")


def _mv(arguments: argparse.Namespace) -> int:
    from actstore.store import open

    model, _, corpus = arguments.to.partition("/")
    if not model or not corpus:
        raise SelectionError(f"{arguments.to!r} is no name of a run: give MODEL/CORPUS")
    store = open(arguments.store)
    store.rename(*run_name(arguments.store, arguments.run), to=(model, corpus))
    told = {"run": arguments.run, "to": arguments.to}
    print(json.dumps(told) if arguments.json else f"{arguments.run} is now {arguments.to}")
    return 0
