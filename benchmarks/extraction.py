"""Extraction against the loop people write, on SmolLM2-135M and Wikipedia sentences.

The loop pads batches of sentences in the order of the corpus, calls the model with
``output_hidden_states=True``, keeps the drawn positions of every layer, and ends with
``torch.save``. Beside it the bare forward pass of the base model over the very batches that
actstore forms, which is the least that any extraction can take. All keep, or would keep, the same
rows. They take turns, and each one's best turn counts: a neighbour's load is not theirs.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import actstore
from actstore.extraction.computing import batches, tokens_of_a_batch
from benchmarks.harness import Measured, measure, table
from examples import assets

BOS = "<|endoftext|>"
GOAL_BARE, GOAL_LOOP = 0.95, 2.0


def main(arguments: Sequence[str] = ()) -> None:
    """Run the benchmark and print it."""
    options = _options(arguments)
    model = actstore.load_model(assets.smollm2(), name="smollm2-135m")
    corpus = actstore.read_corpus(assets.wikipedia(), name="wiki", limit=options.sentences)
    texts = [document.text or "" for document in corpus]
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        # Loads what is loaded once, and says which rows the others are to keep.
        planned = _extract(model, corpus, folder / "warm.zarr", options.batch_tokens)
        shard_rows = planned.info()["shard_rows"]
        ids = planned.input_ids(planned.coordinate("sequence"))
        position = planned.coordinate("position")
        calls: dict[str, Callable[[], Any]] = {
            "output_hidden_states + torch.save": lambda: _loop(
                model, texts, position, options.batch, folder / "loop.pt"
            ),
            "actstore, to Zarr": lambda: _extract(
                model, corpus, _fresh(folder / "s.zarr"), options.batch_tokens
            ),
            "bare forward pass": lambda: _bare(
                model, ids, position, shard_rows, options.batch_tokens
            ),
        }
        loop, ours, bare = _in_turn(calls, options.turns)
        saved = loop.result
        difference = float(np.abs(ours.result.resid.values[:-1] - saved[:-1]).max())
        shape = f"{planned.resid.sizes['layer']} layers × {planned.width('resid')}"
    tokens = int((position + 1).sum())
    print(
        f"{len(texts):,} sentences, {tokens:,} tokens up to the drawn positions, "
        f"{shape}; best of "
        f"{options.turns} turns; rows of ours and of the loop differ by at most {difference:.1e} "
        "below the last layer"
    )
    print(table([loop, ours, bare], loop, [f"batches of {options.batch}", "", "nothing kept"]))
    for clock in ("seconds", "cpu_seconds"):
        spent = {found.name: getattr(found, clock) for found in (loop, ours, bare)}
        kind = "wall time" if clock == "seconds" else "CPU time"
        _goal(f"of the bare forward pass, {kind}", spent[bare.name] / spent[ours.name], GOAL_BARE)
        _goal(f"× the loop people write, {kind}", spent[loop.name] / spent[ours.name], GOAL_LOOP)
    print(
        f"actstore: {tokens / ours.seconds:,.0f} tokens/s, {len(texts) / ours.seconds:.1f} rows/s"
    )


def _goal(what: str, ratio: float, goal: float) -> None:
    print(f"{ratio:.2f} {what}; goal {goal:g}: {'reached' if ratio >= goal else 'NOT reached'}")


def _in_turn(calls: dict[str, Callable[[], Any]], turns: int) -> list[Measured]:
    best: dict[str, Measured] = {}
    for _ in range(turns):
        for name, call in calls.items():
            found = measure(name, call)
            if name not in best or found.seconds < best[name].seconds:
                best[name] = found
    return list(best.values())


def _fresh(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    return path


def _extract(
    model: actstore.LanguageModel, corpus: Any, path: Path, batch_tokens: int | None
) -> actstore.Run:
    return actstore.extract(
        model,
        corpus,
        path,
        positions="random",
        bos=BOS,
        batch_tokens=batch_tokens,
        progress=False,
    )


def _loop(
    model: actstore.LanguageModel, texts: list[str], position: np.ndarray, batch: int, path: Path
) -> np.ndarray:
    """What people write; the drawn positions are given, so that the rows are the same."""
    tokenizer, network = model.tokenizer, model.model
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    kept = []
    with torch.no_grad():
        for start in range(0, len(texts), batch):
            inputs = tokenizer(
                [BOS + text for text in texts[start : start + batch]],
                return_tensors="pt",
                padding=True,
                add_special_tokens=False,
            )
            states = network(**inputs, output_hidden_states=True).hidden_states
            at = torch.tensor(position[start : start + batch]).long()
            kept.append(torch.stack([state[torch.arange(len(at)), at] for state in states]))
    rows = torch.cat(kept, dim=1)
    torch.save(rows, path)
    return rows.numpy()


def _bare(
    model: actstore.LanguageModel,
    ids: list[np.ndarray],
    position: np.ndarray,
    shard_rows: int,
    batch_tokens: int | None,
) -> None:
    """The base model over the same batches, its padding masked, and nothing else."""
    cut = [one[: where + 1] for one, where in zip(ids, position, strict=True)]
    base = model.model.base_model
    with torch.inference_mode():
        for start in range(0, len(cut), shard_rows):
            shard = cut[start : start + shard_rows]
            lengths = [len(one) for one in shard]
            for batch in batches(lengths, tokens_of_a_batch(model, batch_tokens)):
                padded = np.zeros((len(batch), lengths[batch[0]]), np.int64)
                mask = np.zeros_like(padded)
                for row, b in enumerate(batch):
                    padded[row, : lengths[b]] = shard[b]
                    mask[row, : lengths[b]] = 1
                base(
                    torch.from_numpy(padded),
                    attention_mask=None if mask.all() else torch.from_numpy(mask),
                    use_cache=False,
                )


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks extraction", description=__doc__)
    add = parser.add_argument
    add("--sentences", type=int, default=1024)
    add("--batch", type=int, default=32, help="sentences in a batch of the loop")
    add("--batch-tokens", type=int, help="tokens of ours; default: as extract chooses")
    add("--turns", type=int, default=2, help="how often each is measured; default 2")
    add("--folder", help="where the store is made; default: the system's temporary folder")
    return parser.parse_args(arguments)
