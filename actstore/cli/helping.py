"""``actstore doctor`` and ``completion``: is everything there, and the shell's own help."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from actstore.cli.common import command

COMPLETION_HELP = """\
examples:
  actstore completion bash > ~/.local/share/bash-completion/completions/actstore
  actstore completion zsh > ~/.zfunc/_actstore        # a folder of your $fpath
  actstore completion tcsh > ~/.actstore.csh          # source it in ~/.tcshrc
"""


def add_doctor(commands: Any) -> None:
    parser = command(
        commands,
        "doctor",
        _doctor,
        "Check the installation: versions, optional parts, devices, speed of products and disk.",
    )
    parser.add_argument(
        "--disk",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="where to measure the disk, as your store would lie; default: here",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _doctor(arguments: argparse.Namespace) -> int:
    from actstore.cli.health import examine

    health = examine(arguments.disk)
    print(json.dumps(health.to_dict(), indent=2) if arguments.json else health)
    return 1 if health.problems else 0


def add_completion(commands: Any) -> None:
    parser = command(
        commands,
        "completion",
        _completion,
        "Print a script with which the shell completes commands and options.",
        COMPLETION_HELP,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def _completion(arguments: argparse.Namespace) -> int:
    import shtab

    from actstore.cli import make_parser

    print(shtab.complete(make_parser(), arguments.shell))
    return 0
