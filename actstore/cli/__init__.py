"""The command line: ``actstore extract · ls · fit · report · doctor``, and the rest.

A thin layer above both packages, a module for each group of commands. Bad input is one line on
stderr and exit code 2; an interruption is exit code 130, and what was committed stays.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from actstore import __version__
from actstore.cli.common import Once
from actstore.cli.extracting import add_extract, add_repair
from actstore.cli.fitting import add_fit, add_report
from actstore.cli.helping import add_completion, add_doctor
from actstore.cli.looking import add_info, add_ls, add_verify
from actstore.cli.managing import add_mv, add_rm
from actstore.errors import ActstoreError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; ``sys.argv[1:]`` by default.

    Returns
    -------
    int
        0 done; 1 `verify` or `doctor` found problems, or `verify` a run that is not whole,
        `repair` left some, what
        `extract --dry-run` tells of does not fit, or `rm` was not confirmed; 2 bad input;
        130 interrupted.
    """
    _quiet_libraries()
    arguments = make_parser().parse_args(argv)
    arguments.command_line = shlex.join(["actstore", *(sys.argv[1:] if argv is None else argv)])
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warning_line
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


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything else here does; takes an option once."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("action", None, Once)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; '{self.prog} --help' explains\n")


def _warning_line(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"actstore: warning: {message}", file=sys.stderr)


def _quiet_libraries() -> None:
    """What is wrong is said by us, once; set before the libraries are imported."""
    for name in ("HF_HUB_VERBOSITY", "TRANSFORMERS_VERBOSITY"):
        os.environ.setdefault(name, "error")


def make_parser() -> argparse.ArgumentParser:
    """The whole command line's parser."""
    parser = _Parser(
        prog="actstore",
        description="Store transformer activations on disk, labelled, and study them.",
        epilog="'actstore COMMAND --help' explains a command and gives examples.",
    )
    parser.add_argument("--version", action="version", version=f"actstore {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_extract(commands)
    add_repair(commands)
    add_ls(commands)
    add_info(commands)
    add_verify(commands)
    add_mv(commands)
    add_rm(commands)
    add_fit(commands)
    add_report(commands)
    add_doctor(commands)
    add_completion(commands)
    return parser
