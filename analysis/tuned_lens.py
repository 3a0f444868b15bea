"""The tuned lens: affine maps to the last layer, trained on what the model then says.

"Eliciting Latent Predictions from Transformers with the Tuned Lens" (Belrose et al. 2023, arXiv
2303.08112, §3). Training starts at the least-squares map and takes stored states alone; the
model is not run again but for its final norm and head.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import xarray as xr
from tqdm import tqdm

from actstore.errors import AnalysisError
from actstore.fitting import MapSet, fit
from actstore.grams import gram
from analysis import results, stats
from analysis.comparing import add, checked_ks, describe_samples, groups_of, layer_shares
from analysis.decoding import MEMORY, SITE, require_model
from analysis.divergence import compare_distributions
from analysis.lens import Lens, divergence, mean_divergence

if TYPE_CHECKING:
    from actstore.models import LanguageModel
    from actstore.store import Run

LEVEL = 0.95


def train(
    run: Run,
    model: LanguageModel,
    *,
    layers: Sequence[int] | None = None,
    epochs: int = 3,
    batch_size: int = 256,
    learning_rate: float = 5e-4,
    validation: float = 0.1,
    by: str = "document",
    seed: int = 0,
    progress: bool | None = None,
) -> MapSet:
    """Maps (l, L) trained so that the model, given h_l A + b, says what it says given h_L.

    The loss is KL(p ‖ q) in nats, p the model's own softmax(decode(h_L)), q = softmax(decode(
    h_l A + b)) (§3 of the paper, which starts at the identity instead). A and b start at least
    squares with an intercept; what is trained is their change in terms of white h_l, by Adam with
    a rate that falls linearly to 0. Some groups of samples are held out of the training, and of
    each layer's maps, the start among them, the one with the least KL there is kept.

    Parameters
    ----------
    run : Run
        Training samples, with layer L of the residual stream in view.
    model : LanguageModel
        The model that the run was extracted from.
    layers : sequence of int, optional
        Default: all in view below L.
    epochs, batch_size : int
    learning_rate : float
        Of the first step, in units of the target's standard deviation.
    validation : float
        Share of the samples held out, in (0, 1).
    by : str
        Sample coordinate whose equal values are held out together.
    seed : int
        Of what is held out and of the order of the samples.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    MapSet
        As `actstore.fit` gives: saved by ``maps.save(path)`` and used wherever maps are. Its
        provenance has ``tuned``: the choices here, and ``validation_kl``, a list for each layer
        with the KL of the start and after each epoch. The same call gives the same numbers on the
        same machine with the same number of threads.

    Raises
    ------
    AnalysisError, SiteError
        Layer L or another is not in view, the model is another or has no head, or numbers that
        make no sense.
    """
    last = model.n_blocks
    require_model(run, model)
    if not model.has_head:
        raise AnalysisError(f"{model.name} has no language-model head to decode with")
    if epochs < 0 or batch_size < 1 or not learning_rate > 0:
        raise AnalysisError(
            f"epochs={epochs}, batch_size={batch_size}, learning_rate={learning_rate}: no negative "
            "epochs, at least one row a batch, and a positive rate are needed"
        )
    inner = [n for n in run.sites.get(SITE, []) if n < last] if layers is None else sorted(layers)
    view = run.sel(site=SITE, layer=[*inner, last])
    if not inner or last in inner:
        raise AnalysisError(f"a lens is trained for layers below {last}, but {inner} are asked for")
    rest, judged = view.split(validation, by=by, seed=seed)
    moments = gram(rest, sites=SITE, pairs="to_last", progress=progress)
    start = fit(moments, pairs="to_last", intercept=True, progress=progress)
    lenses = {layer: Lens(start[layer, last], moments) for layer in inner}
    data = rest.to_torch(SITE, batch_size=batch_size, seed=seed)
    steps = epochs * len(data)
    optimiser = torch.optim.Adam(
        [p for lens in lenses.values() for p in lens.parameters()], lr=learning_rate
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: max(1 - step / max(steps, 1), 0)
    )
    history = {
        layer: [kl] for layer, kl in mean_divergence(lenses, judged, model, batch_size).items()
    }
    bar = tqdm(
        total=steps,
        desc="tuned lens",
        unit="batch",
        disable=None if progress is None else not progress,
        file=sys.stderr,
    )
    with bar, model.exclusive(), torch.inference_mode(False), torch.enable_grad():
        for epoch in range(epochs):
            data.set_epoch(epoch)
            for batch in data:
                states = dict(
                    zip(batch["layer"].tolist(), batch["activations"].float(), strict=True)
                )
                with torch.no_grad():
                    aim = model.logits(states[last]).float().log_softmax(-1)
                for layer, lens in lenses.items():
                    loss = divergence(aim, model.logits(lens(states[layer])))
                    gradients = torch.autograd.grad(loss, list(lens.parameters()))
                    for parameter, gradient in zip(lens.parameters(), gradients, strict=True):
                        parameter.grad = gradient
                optimiser.step()
                schedule.step()
                bar.update()
            for layer, kl in mean_divergence(lenses, judged, model, batch_size).items():
                if kl < min(history[layer]):
                    lenses[layer].keep()
                history[layer].append(kl)
    columns = moments.columns
    maps = {
        (columns.index(layer), columns.index(last)): lens.linear_map()
        for layer, lens in lenses.items()
    }
    tuned = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "validation": validation,
        "by": by,
        "seed": seed,
        "validation_samples": judged.n_samples,
        "validation_kl": {str(layer): values for layer, values in history.items()},
        "model": model.describe()["fingerprint"],
    }
    return MapSet(maps, columns, {**start.provenance, "tuned": json.loads(json.dumps(tuned))})


def curves(
    run: Run,
    lenses: MapSet,
    maps: MapSet,
    model: LanguageModel,
    *,
    ks: Sequence[int] = (1, 5, 10),
    cluster: str | None = "document",
    memory: int = MEMORY,
    progress: bool | None = None,
) -> xr.Dataset:
    """The tuned lens beside ``mat`` and ``id``: Precision@k, surprisal, and KL to the model.

    Precision@k and surprisal are those of `analysis.prediction.curves` ("Jump to Conclusions",
    arXiv 2303.09435, §3); KL is KL(p ‖ q) of the model's own distribution and that of the
    readout, in nats, a mean over samples.

    Parameters
    ----------
    run : Run
        Evaluation samples, of other documents than those trained on.
    lenses : MapSet
        What `train` returned; its layers are those evaluated.
    maps : MapSet
        Least-squares maps (l, L) for ``mat``, of the same layers.
    model : LanguageModel
    ks : sequence of int
    cluster : str or None
        Sample coordinate whose values mark dependent samples; None: all are independent.
    memory : int
        Bytes of logits held at a time.
    progress : bool, optional
        Show a progress bar; default: on a terminal.

    Returns
    -------
    xarray.Dataset
        ``precision`` (shortcut, layer, k), ``surprisal`` and ``kl`` (shortcut, layer) for the
        shortcuts tuned, mat, id; paired gains of tuned over mat, positive where tuned is better:
        ``precision_gain`` (layer, k), ``surprisal_gain`` and ``kl_gain`` (layer). Each with
        ``_low`` and ``_high``, ends of cluster-robust 95% intervals.

    Raises
    ------
    AnalysisError, SiteError
        A layer or map is missing, or a coordinate or k is not there.
    NonFiniteError
        A state or a logit is NaN or infinite.
    """
    last = model.n_blocks
    chosen_ks = checked_ks(ks, model.vocab_size)
    groups = groups_of(run, cluster)
    require_model(run, model)
    layers = sorted({int(source) for source, _ in lenses if not isinstance(source, tuple)})
    missing = [n for n in layers if (n, last) not in maps or (n, last) not in lenses]
    if missing or not layers:
        raise AnalysisError(
            f"no map {missing[0] if missing else '…'} → {last} on either side: lenses and maps of "
            "the same layers are compared"
        )
    view = run.sel(site=SITE, layer=[*layers, last])
    shortcuts = ("tuned", "mat", "id")
    readouts = {
        layer: {"tuned": lenses[layer, last], "mat": maps[layer, last], "id": None}
        for layer in layers
    }
    found = compare_distributions(view, model, readouts, shortcuts, memory, progress)
    dataset = xr.Dataset(
        coords={
            "shortcut": list(shortcuts),
            "layer": layers,
            "k": chosen_ks,
            "depth": ("layer", np.array(layers) / last),
        }
    )
    hits = np.stack([found.rank < k for k in chosen_ks], axis=2)
    dims = ("shortcut", "layer")
    shares = layer_shares(hits, groups, layers, last, LEVEL)
    add(dataset, "precision", (*dims, "k"), shares)
    add(dataset, "surprisal", dims, stats.mean(found.surprisal, groups, level=LEVEL))
    add(dataset, "kl", dims, stats.mean(found.divergence, groups, level=LEVEL), "nats")
    gain = hits[0].astype(np.int8) - hits[1]
    add(dataset, "precision_gain", ("layer", "k"), stats.mean(gain, groups, level=LEVEL))
    for name, values in (("surprisal", found.surprisal), ("kl", found.divergence)):
        gained = stats.mean(values[1] - values[0], groups, level=LEVEL)
        add(dataset, f"{name}_gain", ("layer",), gained, "nats")
    dataset.attrs.update(describe_samples(run, groups, cluster, LEVEL))
    record = results.provenance(
        "analysis.tuned_lens.curves",
        runs={"evaluation": view},
        model=model,
        maps=maps,
        lenses=lenses.provenance,
        ks=chosen_ks,
        cluster=cluster,
    )
    return results.label(dataset, "tuned_lens", f"{run.model} on {run.corpus}", record)
