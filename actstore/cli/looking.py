"""``actstore ls``, ``info`` and ``verify``: what a store holds, and whether it is sound."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from actstore.cli.common import add_run, command, known, labels, named_run
from actstore.errors import ActstoreError
from actstore.wording import count

VERIFY_HELP = """\
exit code:
  0  every run read is whole: all that was asked for is there, and every byte is the one written
  1  something is damaged, or a run is not whole: its extraction has not ended, or a journal was
     lost, which looks the same
  2  the store or the run cannot be found or read
"""


def add_ls(commands: Any) -> None:
    parser = command(commands, "ls", _ls, "List the runs of a store.")
    parser.add_argument("store", help="folder or URL of the store")
    parser.add_argument("--json", action="store_true", help="one JSON list")


def _ls(arguments: argparse.Namespace) -> int:
    from actstore.store import open
    from actstore.store.table import text_table

    store = open(arguments.store)
    if not arguments.json:
        table = store.table(cache=True)
        print(f"<actstore.Store {store.location}>{'' if table else '  no runs'}")
        if table:
            print(text_table(table))
        if any(row["cache"] for row in table):
            print(
                "cache: Grams that were computed from a run, and are computed again when needed; "
                "'actstore rm STORE RUN --cache' removes them"
            )
        return 0
    rows = []
    for row in store.table():
        try:
            run = store[row["model"], row["corpus"]]
            info = {**run.info(), "cache_bytes": sum(run.cache.values())}
        except ActstoreError as error:
            info = {**row, "problem": str(error)}
        rows.append({name: value for name, value in info.items() if name not in ("key", "info")})
    print(json.dumps(rows, indent=2))
    return 0


def add_info(commands: Any) -> None:
    parser = command(commands, "info", _info, "Show what a run holds and what it was made from.")
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _info(arguments: argparse.Namespace) -> int:
    from actstore.store import human_bytes

    run = named_run(arguments.store, arguments.run)
    cache = run.cache
    held = sum(cache.values())
    told = {**run.info(), "cache": cache, "cache_bytes": held}
    if arguments.json:
        print(json.dumps(told, indent=2, default=str))
    else:
        print(run)
        print()
        _print_tree(told)
        if held:
            print(
                f"the cache takes {human_bytes(held)} beside {human_bytes(run.nbytes)} of rows, "
                "and is computed again when needed; 'actstore rm STORE RUN --cache' removes it"
            )
    return 0


def _print_tree(values: dict[str, Any], indent: str = "") -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            print(f"{indent}{key}:")
            _print_tree(value, indent + "  ")
        else:
            print(f"{indent}{key}: {value}")


def add_verify(commands: Any) -> None:
    parser = command(
        commands,
        "verify",
        _verify,
        "Read every byte of a store and list all problems.",
        VERIFY_HELP,
    )
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="one JSON list of the problems")


def _verify(arguments: argparse.Namespace) -> int:
    from actstore.store import open, verify_run

    store = open(arguments.store)
    names = [f"{model}/{corpus}" for model, corpus in store]
    if arguments.run is not None:
        names = [known(arguments.store, names, arguments.run)]
    found = [p for name in names for p in verify_run(arguments.store, *labels(name), whole=True)]
    problems = [problem for problem in found if not problem.pending]
    lacking = [problem for problem in found if problem.pending]
    if arguments.json:
        print(json.dumps([asdict(problem) for problem in found], indent=2))
        return 1 if found else 0
    for problem in found:
        print(problem)
    damaged = dict.fromkeys(problem.run for problem in problems)
    for name in damaged:
        print(f"{name} is damaged: 'actstore repair' makes again what is bad or missing")
    for name in dict.fromkeys(problem.run for problem in lacking):
        if name not in damaged:
            print(
                f"{name} is not whole: the 'actstore extract' that made it goes on where it "
                "stopped; if it had ended, a journal was lost, and 'actstore repair' does the same"
            )
    print(
        f"{count(len(names), 'run', 'no')} read, {count(len(problems), 'problem', 'no')}"
        + (f", {count(len(lacking), 'shard')} not committed" if lacking else "")
    )
    return 1 if found else 0
