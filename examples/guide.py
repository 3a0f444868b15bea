"""Every guide as a script: ``python -m examples.guide fit`` runs the page's code, block by block.

By default on SmolLM2-135M and some Wikipedia and news sentences, under the names that the guides
give them, in a new folder; ``--model`` and ``--text`` take yours.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actstore.cli import main as command_line

GUIDES = Path(__file__).parent / "guides"
NAMES = tuple(sorted(page.stem for page in GUIDES.glob("*.md") if page.stem != "README"))
MODELS = ("my-model", "openai-community/gpt2")
TEXTS = ("wiki.txt", "news.txt")
SENTENCES = 80
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n)?```(?P<kind>[a-z]*)\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A block of a page's code.

    Attributes
    ----------
    line : int
        Of the page.
    kind : {"python", "bash"}
    code : str
    """

    line: int
    kind: str
    code: str


def blocks(page: Path) -> list[Block]:
    """The blocks that run: all but those with ``<!-- not run: why -->`` on the line above."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text[: found.start("code")].count("\n") + 1, found["kind"], found["code"])
        for found in BLOCK.finditer(text)
        if found["kind"] in ("python", "bash") and found["why"] is None
    ]


def run(page: Path, *, show: bool = False) -> None:
    """Run a page's blocks in their order, in the current folder and one namespace.

    Raises
    ------
    SystemExit
        A command of the page failed.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if show:
            print(f"\n--- {page.name}, line {block.line}\n{block.code}---", flush=True)
        if block.kind == "bash":
            _shell(block.code)
        else:
            # so that an error shows the page's own line
            exec(compile("\n" * block.line + block.code, str(page), "exec"), namespace)


def _shell(code: str) -> None:
    """Each ``actstore`` line of a block, through the command line's own entry."""
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] != "actstore":
            raise SystemExit(f"{line!r} is not an actstore command")
        if (status := command_line(words[1:])) != 0:
            raise SystemExit(f"{line!r} ended with {status}")


def main() -> None:
    """Make the folder, and run the guides in it, each in a folder of its own."""
    options = _options()
    model, texts = options.model, [options.text, options.news or options.text]
    if model is None or options.text is None:
        from examples import assets
        from examples.demo import spread

        model = model or assets.smollm2()
        if options.text is None:
            texts = [spread(path, SENTENCES) for path in (assets.wikipedia(), assets.news())]
    for name in options.guides:
        folder = options.output / name
        if folder.exists() and any(folder.iterdir()):
            raise SystemExit(f"{folder} is not empty: name another with --output, or remove it")
        prepare(folder, Path(model), texts)
        with contextlib.chdir(folder):
            run(GUIDES / f"{name}.md", show=True)


def prepare(folder: Path, model: Path, texts: list[Any]) -> None:
    """Put a model and two texts, files or documents, into a folder under the guides' names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        # A folder of links: a link to the folder would give the model its own name.
        (folder / name).mkdir(parents=True)
        for file in model.iterdir():
            (folder / name / file.name).symlink_to(file.absolute())
    for name, text in zip(TEXTS, texts, strict=True):
        if isinstance(text, Path):
            (folder / name).symlink_to(text.absolute())
        else:
            (folder / name).write_text("\n".join(_lines(text)) + "\n", encoding="utf-8")


def _lines(documents: list[Any]) -> Iterator[str]:
    for document in documents:
        yield " ".join(document.text.split())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add = parser.add_argument
    add("guides", nargs="+", choices=NAMES, metavar="GUIDE", help=", ".join(NAMES))
    add("--model", type=Path, help="folder of a model with its tokenizer")
    add("--text", type=Path, help="a document per line")
    add("--news", type=Path, help="a second text; default: the first")
    add("--output", type=Path, default=Path("guide-output"), help="folder to fill")
    return parser.parse_args()


if __name__ == "__main__":
    main()
