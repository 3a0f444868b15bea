"""What several commands share: how a run is named, and what is held out of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actstore.errors import IncompleteError, SelectionError
from actstore.wording import count

if TYPE_CHECKING:
    from actstore.store import Run


class Once(argparse.Action):
    """Keeps an option's value, and refuses a second one: neither is meant more than the other."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = namespace.__dict__.setdefault("_given", set())
        if option_string is not None and self.dest in given:
            before = getattr(namespace, self.dest)
            raise argparse.ArgumentError(self, f"given twice, {before} and {values}: give it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


def command(commands: Any, name: str, run: Callable[..., int], text: str, epilog: str = "") -> Any:
    parser = commands.add_parser(
        name,
        help=text[0].lower() + text[1:].rstrip("."),
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=run)
    return parser


def add_run(parser: Any) -> None:
    parser.add_argument("store", help="folder or URL of the store")
    parser.add_argument("run", nargs="?", help="MODEL/CORPUS; not needed where there is one run")


def add_evaluation(parser: Any) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--evaluate", metavar="MODEL/CORPUS", help="run to evaluate on")
    group.add_argument("--holdout", type=float, metavar="SHARE", help="share of samples held out")
    parser.add_argument(
        "--by", default="document", help="what is held out whole; default: document"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the split; default 0")


def train_and_evaluation(arguments: argparse.Namespace) -> tuple[Run, Run | None]:
    run = finished_run(arguments.store, arguments.run)
    if arguments.holdout is not None:
        return run.split(arguments.holdout, by=arguments.by, seed=arguments.seed)
    if arguments.evaluate is not None:
        return run, finished_run(arguments.store, arguments.evaluate)
    return run, None


def named_run(store_path: str, spec: str | None) -> Run:
    from actstore.store import open

    return open(store_path)[run_name(store_path, spec)]


def finished_run(store_path: str, spec: str | None) -> Run:
    """The run that is meant; IncompleteError if its rows are not all there."""
    run = named_run(store_path, spec)
    if not run.state.startswith("complete"):
        raise IncompleteError(
            f"{run.name} is not whole ({run.state}): the 'actstore extract' that began it "
            "finishes it, 'actstore repair' mends what is damaged"
        )
    return run


def run_name(store_path: str, spec: str | None) -> tuple[str, str]:
    """Labels of the run that is meant; the only one where none is named."""
    from actstore.store import open

    names = [f"{model}/{corpus}" for model, corpus in open(store_path)]
    if spec is None:
        if len(names) != 1:
            raise SelectionError(
                f"{store_path} holds {count(len(names), 'run', 'no')}; name one of: "
                f"{', '.join(names) or 'none'}"
            )
        spec = names[0]
    return labels(known(store_path, names, spec))


def labels(name: str) -> tuple[str, str]:
    """Model and corpus of a run's name."""
    model, _, corpus = name.partition("/")
    return model, corpus


def known(store_path: str, names: list[str], spec: str) -> str:
    if spec not in names:
        raise SelectionError(
            f"no run {spec!r} in {store_path}; it has: {', '.join(names) or 'none'}"
        )
    return spec
