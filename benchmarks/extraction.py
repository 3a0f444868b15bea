"""Extraction against the loop people write, on SmolLM2-135M and Wikipedia sentences.

The loop pads batches of sentences in the order of the corpus, calls the model with
``output_hidden_states=True``, keeps the drawn positions of every layer, and ends with
``torch.save``. Beside it the bare forward pass of the base model over the batches that actstore
forms, which is the least that any extraction can take. All three keep or would keep the same rows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import actstore
from actstore.extraction.computing import batches
from benchmarks.harness import measure, table
from examples import assets

BOS = "<|endoftext|>"


def main(arguments: Sequence[str] = ()) -> None:
    """Run the benchmark and print it."""
    options = _options(arguments)
    model = actstore.load_model(assets.smollm2(), name="smollm2-135m")
    corpus = actstore.read_corpus(assets.wikipedia(), name="wiki", limit=options.sentences)
    texts = [document.text for document in corpus]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        # Loads what is loaded once, and says which rows the others are to keep.
        planned = _extract(model, corpus, Path(folder) / "warm.zarr")
        ids = planned.input_ids(planned.coordinate("sequence"))
        position = planned.coordinate("position")
        ours = measure(
            "actstore, to Zarr", lambda: _extract(model, corpus, Path(folder) / "s.zarr")
        )
        loop = measure(
            "output_hidden_states + torch.save",
            lambda: _loop(model, texts, position, options.batch, Path(folder) / "loop.pt"),
        )
        bare = measure("bare forward pass", lambda: _bare(model, ids, position))
        saved = loop.result
        difference = float(np.abs(ours.result.resid.values[:-1] - saved[:-1]).max())
    tokens = int((position + 1).sum())
    print(
        f"{len(texts):,} sentences, {tokens:,} tokens up to the drawn positions, "
        f"{planned.resid.sizes['layer']} layers × {planned.width('resid')}; rows of ours and of "
        f"the loop differ by at most {difference:.1e} below the last layer"
    )
    print(table([loop, ours, bare], loop, [f"batches of {options.batch}", "", "nothing kept"]))
    print(f"actstore runs at {bare.seconds / ours.seconds:.2f} of the bare forward pass")


def _extract(model: actstore.LanguageModel, corpus: Any, path: Path) -> actstore.Run:
    return actstore.extract(model, corpus, path, positions="random", bos=BOS, progress=False)


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
            at = torch.from_numpy(position[start : start + batch]).long()
            kept.append(torch.stack([state[torch.arange(len(at)), at] for state in states]))
    rows = torch.cat(kept, dim=1)
    torch.save(rows, path)
    return rows.numpy()


def _bare(model: actstore.LanguageModel, ids: list[np.ndarray], position: np.ndarray) -> None:
    """The base model over the same batches, and nothing else."""
    cut = [one[: where + 1] for one, where in zip(ids, position, strict=True)]
    base = model.model.base_model
    with torch.inference_mode():
        for start in range(0, len(cut), 1024):
            shard = cut[start : start + 1024]
            for batch in batches([len(one) for one in shard], 4096):
                longest = max(len(shard[b]) for b in batch)
                padded = np.zeros((len(batch), longest), np.int64)
                for row, b in enumerate(batch):
                    padded[row, : len(shard[b])] = shard[b]
                base(torch.from_numpy(padded), use_cache=False)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks extraction", description=__doc__)
    add = parser.add_argument
    add("--sentences", type=int, default=1024)
    add("--batch", type=int, default=32, help="sentences in a batch of the loop")
    add("--folder", help="where the store is made; default: the system's temporary folder")
    return parser.parse_args(arguments)
