"""Plain against regularised models: loss, and how linear each became, over several seeds.

"Your Transformer is Secretly Linear" (arXiv 2405.12250) §5.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import actstore
from actstore.errors import AnalysisError
from analysis import linearity, perplexity, results, stats
from analysis.comparing import add
from analysis.pretraining.training import RECIPE, Trained, plain_config, train
from analysis.training import Recipe

ARMS: dict[str, tuple[str | None, float]] = {
    "plain": (None, 0.0),
    "cosine": ("cosine", 0.5),
    "mse": ("mse", 0.01),
}
"""What is compared: name → (regulariser, λ). The first is what the others are compared with."""

LEVEL = 0.95
Probe = Callable[[actstore.Run], xr.DataArray]


def compare(
    config: Any,
    documents: Any,
    held_out: Any,
    tokenizer: Any,
    *,
    folder: str | os.PathLike[str],
    arms: Mapping[str, tuple[str | None, float]] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    recipe: Recipe = RECIPE,
    context: int = 128,
    batch: int = 16,
    stride: int | None = None,
    bos: str = "<|endoftext|>",
    first_token: str | int = "keep",
    probe: Probe | None = None,
    every: int = 100,
    device: Any = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Train every arm from every seed, and measure all of them on the same held-out text.

    Arms of one seed begin with the same weights and see the same batches, so that differences
    between arms are paired by seed. Intervals are over seeds: they tell what another random start
    would do, on this text.

    Parameters
    ----------
    config, documents, tokenizer, recipe, context, batch, bos, every, device
        As for `analysis.pretraining.train`.
    held_out : corpus
        Documents that nothing was trained on. Their states at all positions of the first
        `context` tokens go into the store ``folder/states.zarr``, one run for each model.
    folder : path
        Models, checkpoints, states and what was measured. The same call goes on there.
    arms : mapping of name to (regulariser, λ), optional
        Default: `ARMS`. The first is the baseline.
    seeds : sequence of int
        At least two for intervals.
    stride : int, optional
        For the validation loss, as for `analysis.perplexity.perplexity`; default: half of
        `context`.
    first_token : {"keep", "drop"} or int
        As for `analysis.linearity.scores`.
    probe : function of a Run, optional
        Gives an accuracy for each layer, with dimension ``layer``, such as
        ``lambda run: analysis.probing.accuracy(run, "book").accuracy``; each model's run is
        probed. Results that are kept go by the function's name.
    progress : bool, optional

    Returns
    -------
    xarray.Dataset
        Over (arm, seed): ``validation_loss`` (nats per token), ``cosine`` (the regulariser's
        term at the last step, without λ), and over (arm, seed, source): ``linearity`` and
        ``linearity_no_residual`` of the step from layer ``source`` to the next; with `probe`
        ``accuracy`` (arm, seed, layer). Of each its mean over seeds (``mean_…``), and the
        difference to the first arm paired by seed (``…_gain``), with ``_low`` and ``_high``.
        ``curve`` (arm, seed, step): training cross-entropy, mean of each twentieth of the steps.

    Raises
    ------
    AnalysisError
        No arms or seeds, or the same twice; and as from `train`.
    """
    chosen = dict(ARMS if arms is None else arms)
    if not chosen or not seeds or len(set(seeds)) < len(seeds):
        raise AnalysisError(
            f"arms={list(chosen)}, seeds={list(seeds)}; give some of both, each once"
        )
    place = Path(folder)
    corpus, judged = actstore.read_corpus(documents), actstore.read_corpus(held_out)
    bench = _Bench(place, judged, context, stride, bos, first_token, probe, progress)
    made_from: dict[str, Any] = {
        "text": corpus.fingerprint(),
        "recipe": recipe.to_dict(),
        "context": context,
        "batch": batch,
        "bos": bos,
        "config": plain_config(config),
    }
    key: dict[str, Any] = {
        **made_from,
        "held_out": judged.fingerprint(),
        "stride": stride,
        "first_token": first_token,
        "probe": getattr(probe, "__qualname__", repr(probe)),
    }
    cells: dict[tuple[str, int], xr.Dataset] = {}
    # all arms of a seed before the next one, so that what is there can be compared early
    for seed in seeds:
        for arm, (regulariser, strength) in chosen.items():
            which = [arm, seed, regulariser, strength]
            name = f"{arm}-{seed}-{_digest(which, made_from)}"
            path = place / "measured" / f"{name}-{_digest(actstore.__version__, key)}.zarr"
            if not path.exists():
                trained = train(
                    config,
                    corpus,
                    tokenizer,
                    regulariser=regulariser,
                    strength=strength,
                    seed=seed,
                    recipe=recipe,
                    context=context,
                    batch=batch,
                    bos=bos,
                    folder=place / name,
                    every=every,
                    device=device,
                    progress=progress,
                )
                results.save(bench(trained, name), path)
            cells[arm, seed] = results.load(path)
    one = next(iter(cells.values()))
    dataset = _table(cells, list(chosen), list(seeds))
    dataset.attrs.update(
        context=context,
        stride=one.attrs["stride"],
        batch=batch,
        steps=recipe.steps,
        tokens_trained=recipe.steps * batch * context,
        tokens_judged=one.attrs["tokens"],
        states=one.attrs["states"],
        parameters=one.attrs["parameters"],
        strengths=[strength for _, strength in chosen.values()],
        first_token=first_token,
        level=LEVEL,
    )
    provenance = results.provenance(
        "analysis.pretraining.compare", arms=chosen, seeds=list(seeds), **key
    )
    title = f"{config.model_type}, {config.num_hidden_layers} × {config.hidden_size}"
    return results.label(dataset, "pretraining", title, provenance)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]


class _Bench:
    """Measures one trained model."""

    def __init__(
        self,
        folder: Path,
        held_out: actstore.Corpus,
        context: int,
        stride: int | None,
        bos: str,
        first_token: str | int,
        probe: Probe | None,
        progress: bool | None,
    ) -> None:
        self.folder, self.held_out = folder, held_out
        self.context, self.stride, self.bos = context, stride, bos
        self.first_token, self.probe, self.progress = first_token, probe, progress

    def __call__(self, trained: Trained, name: str) -> xr.Dataset:
        model = trained.known(name)
        loss = perplexity.perplexity(
            model,
            self.held_out,
            context=self.context,
            # a window holds the prefix too
            stride=self.stride or self.context // 2,
            bos=self.bos,
            progress=self.progress,
        )
        run = actstore.extract(
            model,
            self.held_out,
            self.folder / "states.zarr",
            positions="all",
            include_special=True,
            max_length=self.context,
            bos=self.bos,
            corpus_name="held-out",
            progress=self.progress,
        )
        scores = linearity.scores(
            run,
            orthogonal=False,
            parts=1,
            cluster=None,
            first_token=self.first_token,
            progress=self.progress,
        )
        steps = trained.log.sizes["step"]
        parts = np.array_split(trained.log.cross_entropy.values, min(20, steps))
        found = xr.Dataset(
            {
                "validation_loss": ((), float(loss.nll)),
                "cosine": ((), float(trained.log.cosine[-1])),
                "linearity": ("source", scores.score.values),
                "linearity_no_residual": ("source", scores.score_no_residual.values),
                "curve": ("step", [float(part.mean()) for part in parts]),
            },
            coords={
                "source": scores.source.values,
                "step": np.cumsum([len(part) for part in parts]),
            },
        )
        if self.probe is not None:
            found["accuracy"] = ("layer", self.probe(run).values)
        return found.assign_attrs(
            tokens=loss.attrs["tokens"],
            stride=loss.attrs["stride"],
            states=run.n_samples,
            parameters=sum(p.numel() for p in trained.model.parameters()),
        )


def _table(
    cells: Mapping[tuple[str, int], xr.Dataset], arms: list[str], seeds: list[int]
) -> xr.Dataset:
    rows = [[cells[arm, seed] for seed in seeds] for arm in arms]
    stacked = xr.concat(
        [xr.concat(row, dim="seed", combine_attrs="drop") for row in rows],
        dim="arm",
        combine_attrs="drop",
    ).assign_coords(arm=arms, seed=seeds)
    names = [str(name) for name in stacked.data_vars if name != "curve"]
    for name in names:
        values = stacked[name].transpose("arm", ..., "seed")
        dims = tuple(str(dim) for dim in values.dims[:-1])
        add(stacked, f"mean_{name}", dims, stats.mean(values.values, level=LEVEL))
        apart = values.values - values.values[:1]
        add(stacked, f"{name}_gain", dims, stats.mean(apart, level=LEVEL))
    return stacked
