"""Linearity, influence and probes from text on, against transformers' own hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier

import actstore
from analysis import checkpoints, influence, linearity, probing, tokens
from analysis.windows import row_parts
from examples import assets

TEXTS = [
    f"The {a} {b} that runs through {c} is {d}, and the words change 7 lights."
    for a in ("river", "city", "model", "young clerk", "whale")
    for b in ("of numbers", "in water")
    for c in ("the capital", "every paper")
    for d in ("Paris", "another row")
]
TOKENIZERS = {"gpt2": "tiny_tokenizer", "llama": "bos_tokenizer", "bert": "bert_tokenizer"}


def hidden_states(model: Any, run: actstore.Run) -> np.ndarray:
    """(layers but the last, samples, width) by transformers itself, one text after the other."""
    found = []
    sequences = run.coordinate("sequence")
    for number in np.unique(sequences):
        ids = torch.tensor(run.input_ids([number])[0][None].astype(np.int64))
        with torch.no_grad():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        positions = run.coordinate("position")[sequences == number]
        found.append(torch.stack(states)[:-1, 0, positions].numpy())
    return np.concatenate(found, axis=1).astype(np.float64)


def centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean(axis=0)


@pytest.fixture(params=list(TOKENIZERS))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, actstore.Run]:
    """A random-weight model and the run of all its tokens."""
    model = request.getfixturevalue(f"tiny_{request.param}")
    tokenizer = request.getfixturevalue(TOKENIZERS[request.param])
    run = actstore.extract(
        actstore.load_model(model, tokenizer=tokenizer, name="tiny"),
        TEXTS if request.param != "bert" else [text.lower() for text in TEXTS],
        tmp_path / "s.zarr",
        corpus_name="text",
        positions="all",
        include_special=True,
        progress=False,
    )
    return model, run


def test_scores_and_turns_are_those_of_transformers_states(
    pair: tuple[Any, actstore.Run],
) -> None:
    model, run = pair
    states = hidden_states(model, run)
    for first_token, kept in (("keep", slice(None)), ("drop", run.coordinate("position") > 0)):
        found = linearity.scores(run, first_token=first_token, parts=5, progress=False)
        turns = influence.block_influence(run, first_token=first_token, progress=False)
        for layer in range(len(states) - 1):
            x, y = states[layer, kept], states[layer + 1, kept]
            at = found.sel(source=layer)
            for name, target in (("score", y), ("score_no_residual", y - x)):
                fit = centred(x) @ np.linalg.lstsq(centred(x), centred(target), rcond=1e-6)[0]
                error = ((fit - centred(target)) ** 2).sum() / (centred(target) ** 2).sum()
                assert float(at[name]) == pytest.approx(1 - error, abs=2e-4)
            cosine = (x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))
            influenced = float(turns.influence.sel(source=layer))
            assert influenced == pytest.approx(1 - cosine.mean(), abs=1e-5)


def test_a_probe_of_token_classes_is_scikit_learns(pair: tuple[Any, actstore.Run]) -> None:
    model, run = pair

    def kinds(samples: Any) -> np.ndarray:
        return tokens.token_kinds(samples["token"].values.astype(object))

    found = probing.accuracy(run, kinds, ridges=[0.1], layers=[1], progress=False)
    rows, labels = hidden_states(model, run)[1], kinds(run.samples).astype(str)
    folds = row_parts(run, "document", 5, 0)
    guess = np.empty(len(labels), object)
    for fold in range(5):
        train = folds != fold
        mean, spread = rows[train].mean(axis=0), rows[train].std(axis=0)
        model_ = RidgeClassifier(alpha=float(found.ridge.sel(layer=1, fold=fold)))
        model_.fit((rows[train] - mean) / spread, labels[train])
        guess[~train] = model_.predict((rows[~train] - mean) / spread)
    assert float(found.accuracy[0]) == pytest.approx((guess == labels).mean(), abs=2 / len(labels))


@pytest.mark.real
def test_the_sink_of_a_real_decoder_hides_the_rest(
    real_model_folder: Path, wikipedia_path: Path, tmp_path: Path
) -> None:
    run = actstore.extract(
        actstore.load_model(real_model_folder, name="smollm2"),
        actstore.read_corpus(wikipedia_path, limit=60),
        tmp_path / "s.zarr",
        positions="all",
        include_special=True,
        bos="<|endoftext|>",
        layers=[20, 21],
        progress=False,
    )
    norms = np.linalg.norm(run["resid"].sel(layer=20).values, axis=1)
    first = run.coordinate("position") == 0
    assert norms[first].mean() > 20 * norms[~first].mean()
    keep = linearity.scores(run, orthogonal=False, progress=False)
    drop = linearity.scores(run, first_token="drop", orthogonal=False, progress=False)
    assert float(keep.score[0]) > 0.999
    assert float(drop.score[0]) < float(keep.score[0])
    turned = influence.block_influence(run, first_token="drop", progress=False)
    assert 0 < float(turned.influence[0]) < 0.2


@pytest.mark.real
def test_a_real_fine_tuned_model_is_compared_on_the_same_tokens(tmp_path: Path) -> None:
    names = ("reaction_bert", "reaction_bert_ft")
    if not assets.available(*names, "reactions"):
        pytest.skip(f"not fetched: python -m examples.assets {' '.join(names)} reactions")
    corpus = list(actstore.read_corpus(assets.reactions()))[::8]
    runs = {
        name: actstore.extract(
            actstore.load_model(assets.path_of(name), name=name),
            corpus,
            tmp_path / "s.zarr",
            corpus_name="reactions",
            positions="all",
            progress=False,
        )
        for name in names
    }
    found = checkpoints.compare(runs, cluster="core", progress=False)
    assert found.sizes == {"checkpoint": 2, "source": 12}
    assert (found.score > 0.5).all()
    changed = found.sel(checkpoint="reaction_bert_ft")
    assert ((changed.score_change_low > 0) | (changed.score_change_high < 0)).any()
