"""Section of plain and regularised models."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from actstore.wording import count
from analysis import plots
from analysis.report.page import Cell, Picture, Section, Table
from analysis.report.topic import Topic, interval


def _findings(dataset: xr.Dataset) -> list[str]:
    first, *others = dataset.arm.values.tolist()
    sentences = []
    for arm in others:
        at = dataset.sel(arm=arm)
        steps = at.sizes["source"]
        plain, own = (float(dataset.mean_linearity.sel(arm=name).mean()) for name in (first, arm))
        lower, higher = (
            int((at.linearity_gain_high < 0).sum()),
            int((at.linearity_gain_low > 0).sum()),
        )
        sentences.append(
            f"{dataset.attrs['title']}, {arm} against {first}: validation loss "
            f"{_signed(at, 'validation_loss_gain')} nats per token; mean linearity score "
            f"{own:.3f} against {plain:.3f}, lower at {lower} and higher at {higher} of {steps} "
            f"steps between layers (paired over {count(dataset.sizes['seed'], 'seed')})."
        )
    return sentences


def _signed(at: xr.Dataset, name: str) -> str:
    value, low, high = (float(at[name + end]) for end in ("", "_low", "_high"))
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def _section(found: list[xr.Dataset]) -> Section:
    parts: list[Any] = []
    for dataset in found:
        attributes = dataset.attrs
        parts.append(
            Picture(
                [plots.pretraining(dataset)],
                f"{attributes['title']}: {attributes['parameters']:,} parameters, "
                f"{count(attributes['tokens_trained'], 'token')} of training from each of "
                f"{count(dataset.sizes['seed'], 'seed')}; linearity of {attributes['states']:,} "
                f"states of held-out text; bands are {attributes['level']:.0%} intervals over "
                "seeds.",
            )
        )
        strengths = np.atleast_1d(attributes["strengths"]).tolist()
        rows: list[list[str | int | float | Cell]] = []
        for arm, strength in zip(dataset.arm.values.tolist(), strengths, strict=True):
            at = dataset.sel(arm=arm)
            row: list[str | int | float | Cell] = [
                arm,
                strength,
                interval(at, "mean_validation_loss", 1, ".3f"),
                interval(at, "validation_loss_gain", 1, "+.3f"),
                float(at.mean_cosine),
                float(at.mean_linearity.mean()),
                float(at.mean_linearity_no_residual.mean()),
            ]
            if "mean_accuracy" in dataset:
                best = at.isel(layer=int(at.mean_accuracy.argmax("layer")))
                row.append(interval(best, "mean_accuracy", 100, ".1f"))
            rows.append(row)
        header = ["arm", "λ", "validation loss", "against the first", "cosine term"]
        header += ["mean linearity", "without the residual"]
        if "mean_accuracy" in dataset:
            header.append("best layer's probe, %")
        parts.append(
            Table(
                header,
                rows,
                f"{attributes['title']}: loss in nats per token of {attributes['tokens_judged']:,} "
                f"held-out tokens (context {attributes['context']}, stride "
                f"{attributes['stride']}); differences are paired by seed. The cosine term is "
                "Σ (1 − cos) over layers at the last step, without λ.",
            )
        )
    return Section(
        "Does a regulariser between layers change the model?",
        parts,
        "Decoders trained from scratch, plain and with a term that holds successive layers "
        "together (“Your Transformer is Secretly Linear”, arXiv 2405.12250, §5).",
    )


PRETRAINING = Topic(
    "Does a regulariser between layers change the model?",
    _section,
    _findings,
    "No models were trained: analysis.pretraining.compare(config, documents, held_out, "
    "tokenizer, folder=…) does it.",
)
