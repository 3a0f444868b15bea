"""Training a small decoder from scratch, with or without a regulariser between layers."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xarray as xr

import actstore
from actstore.errors import AnalysisError
from actstore.models.provenance import tokenizer_fingerprint
from actstore.models.structure import find_stack
from analysis import results
from analysis.pretraining.regulariser import REGULARISERS, run_with_states, term
from analysis.training import Batches, Recipe, save_model, token_stream
from analysis.training import train as run_steps

RECIPE = Recipe(steps=1000, learning_rate=1e-3, warmup=0.05, weight_decay=0.1)


@dataclass(frozen=True, eq=False)
class Trained:
    """A model that was trained, and how that went.

    Attributes
    ----------
    model : transformers.PreTrainedModel
        In evaluation mode.
    tokenizer : transformers tokenizer
    log : xarray.Dataset
        Over ``step``: ``cross_entropy`` (nats per token), ``cosine`` (the cosine term without λ,
        logged whether it is part of the loss or not), ``loss``, ``learning_rate``,
        ``gradient_norm``; with "mse" also ``mse``.
    """

    model: Any
    tokenizer: Any
    log: xr.Dataset

    def known(self, name: str) -> actstore.LanguageModel:
        """The model as a `LanguageModel`."""
        return actstore.load_model(self.model, tokenizer=self.tokenizer, name=name)


def train(
    config: Any,
    documents: Any,
    tokenizer: Any,
    *,
    regulariser: str | None = None,
    strength: float = 0.5,
    seed: int = 0,
    recipe: Recipe = RECIPE,
    context: int = 128,
    batch: int = 16,
    bos: str = "<|endoftext|>",
    folder: str | os.PathLike[str] | None = None,
    every: int = 100,
    device: Any = None,
    progress: bool | None = None,
) -> Trained:
    """Train a decoder on text from scratch.

    The loss is the cross-entropy of the next token, and with a regulariser L = L_CE +
    λ Σ_i (1 − cos(emb_i, emb_{i−1})) or L_CE + λ Σ_i ‖emb_i − emb_{i−1}‖² over successive layers
    of the stream, the embeddings included, mean over tokens ("Your Transformer is Secretly
    Linear", arXiv 2405.12250, §5). All is drawn from `seed`: weights, batches, dropout. The same
    call gives the same bits on one machine with one number of threads, also when it was killed
    on the way and `folder` was given.

    Parameters
    ----------
    config : transformers configuration
        Of any decoder with a head, such as ``MistralConfig`` or ``LlamaConfig``.
    documents : corpus
        As for `actstore.read_corpus`. One long row of tokens is made of them, each behind `bos`,
        and windows are cut from it.
    tokenizer : transformers tokenizer
        Such as `train_tokenizer` gives.
    regulariser : {"cosine", "mse"}, optional
        None: the plain model.
    strength : float
        λ; the paper reports 0.5 for the cosine.
    seed : int
    recipe : Recipe
        AdamW's steps and rates.
    context, batch : int
        Tokens of a window, and windows of a step.
    bos : str
        As for `actstore.extract`.
    folder : path, optional
        Checkpoints, and at the end the model itself as ``model``, which
        ``AutoModelForCausalLM.from_pretrained`` loads.
    every : int
        Steps between checkpoints.
    device : str or torch.device, optional
        Default: the CPU.
    progress : bool, optional

    Returns
    -------
    Trained

    Raises
    ------
    AnalysisError
        An unknown regulariser, a negative strength, too small a vocabulary, too little text, or
        a folder that holds another run.
    NonFiniteError
        The loss is NaN or infinite.
    """
    if regulariser not in (None, *REGULARISERS):
        raise AnalysisError(f"regulariser={regulariser!r}; choose from {REGULARISERS}, or None")
    if not strength >= 0:
        raise AnalysisError(f"strength={strength}; expected λ ≥ 0")
    if config.vocab_size < len(tokenizer):
        raise AnalysisError(
            f"the configuration has vocab_size={config.vocab_size}, but the tokenizer has "
            f"{len(tokenizer)} tokens; set vocab_size to at least that"
        )
    stream, _ = token_stream(tokenizer, documents, bos)
    batches = Batches(stream, context, batch, seed)
    # drawn on the CPU, so that every device begins with the same weights
    model = fresh(config, seed).to(device or "cpu")
    blocks = find_stack(model).blocks
    factor = 0.0 if regulariser is None else strength

    def losses(step: int) -> dict[str, torch.Tensor]:
        ids = batches(step).to(device or "cpu")
        logits, states = run_with_states(model, blocks, ids)
        entropy = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        )
        found = {"cross_entropy": entropy}
        for kind in ("cosine", "mse") if regulariser == "mse" else ("cosine",):
            with torch.set_grad_enabled(kind == regulariser):
                found[kind] = term(states, kind)
        loss = entropy if regulariser is None else entropy + factor * found[regulariser]
        return {"loss": loss, **found}

    record: dict[str, Any] = {
        "config": plain_config(config),
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "text": hashlib.sha256(stream.tobytes()).hexdigest(),
        "regulariser": regulariser,
        "strength": factor,
        "context": context,
        "batch": batch,
    }
    place = None if folder is None else Path(folder)
    model.train()
    rows = run_steps(
        dict(model.named_parameters()),
        losses,
        recipe,
        seed=seed,
        folder=None if place is None else place / "checkpoints",
        every=every,
        identity=record,
        description=f"{regulariser or 'plain'}, seed {seed}",
        progress=progress,
    )
    model.eval()
    if place is not None and not (place / "model").exists():
        save_model(model, place / "model", tokenizer)
    log = xr.Dataset({name: ("step", values) for name, values in rows.items()})
    log = log.assign_coords(step=range(recipe.steps))
    log.attrs.update(seed=seed, regulariser=regulariser or "none", strength=factor)
    provenance = results.provenance(
        "analysis.pretraining.train", seed=seed, recipe=recipe.to_dict(), **record
    )
    title = f"{config.model_type}, {regulariser or 'plain'}, seed {seed}"
    return Trained(model, tokenizer, results.label(log, "training_log", title, provenance))


def fresh(config: Any, seed: int) -> Any:
    """A model with random weights that are drawn from the seed; the caller's draws go on."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(copy.deepcopy(config))


def plain_config(config: Any) -> dict[str, Any]:
    """All that the configuration says of the model, as JSON types."""
    record: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    record.pop("transformers_version", None)
    return record
