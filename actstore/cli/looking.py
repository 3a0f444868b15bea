"""``actstore ls``, ``info`` and ``verify``: what a store holds, and whether it is sound."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from actstore.cli.common import add_run, command, count, known, named_run
from actstore.errors import ActstoreError


def add_ls(commands: Any) -> None:
    parser = command(commands, "ls", _ls, "List the runs of a store.")
    parser.add_argument("store", help="folder or URL of the store")
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


def add_info(commands: Any) -> None:
    parser = command(commands, "info", _info, "Show what a run holds and what it was made from.")
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _info(arguments: argparse.Namespace) -> int:
    run = named_run(arguments.store, arguments.run)
    told = {**run.info(), "cache": run.cache}
    if arguments.json:
        print(json.dumps(told, indent=2, default=str))
    else:
        print(run)
        print()
        _print_tree(told)
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
        "Read every byte of a store and list all problems; exit code 1 if there are any.",
    )
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="one JSON list of the problems")


def _verify(arguments: argparse.Namespace) -> int:
    from actstore.store import open

    store = open(arguments.store)
    names = [f"{model}/{corpus}" for model, corpus in store]
    if arguments.run is not None:
        names = [known(arguments.store, names, arguments.run)]
    problems = [problem for problem in store.verify() if problem.run in names]
    if arguments.json:
        print(json.dumps([asdict(problem) for problem in problems], indent=2))
    else:
        for problem in problems:
            print(problem)
        for name in names:
            state = store[name].state
            if not state.startswith("complete"):
                print(f"{name} is not whole: {state}; the 'actstore extract' that made it goes on")
        print(f"{count(len(names), 'run')} read, {count(len(problems), 'problem')}")
    return 1 if problems else 0
