"""Maps between two models against scikit-learn on rows paired by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from rerun_models import TEXTS
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score

import actstore
from actstore.errors import AnalysisError, GramError
from analysis import between, plots, report, results


def _model(width: int, layers: int, seed: int, vocabulary: int, tokenizer: Any) -> Any:
    torch.manual_seed(seed)
    config = hf.GPT2Config(
        vocab_size=vocabulary,
        n_embd=width,
        n_layer=layers,
        n_head=2,
        n_positions=64,
        initializer_range=0.3,
    )
    return actstore.load_model(
        hf.GPT2LMHeadModel(config).eval(), tokenizer=tokenizer, name=f"wide{width}"
    )


@pytest.fixture(scope="module")
def runs(tiny_tokenizer: Any, tmp_path_factory: Any) -> list[Any]:
    """Two tiny models of other widths and depths on the same tokens."""
    path = tmp_path_factory.mktemp("between") / "s.zarr"
    return [
        actstore.extract(
            _model(width, layers, width, len(tiny_tokenizer), tiny_tokenizer),
            TEXTS,
            path,
            positions="all",
            corpus_name="t",
        )
        for width, layers in ((8, 2), (12, 3))
    ]


def values(run: Any, layer: int) -> np.ndarray:
    return run.resid.sel(layer=layer).values.astype(float)


def test_scores_equal_scikit_learn_both_ways(runs: list[Any]) -> None:
    first, second = runs
    found = between.scores(first, second, fraction=0.3, seed=1, parts=5)
    _, held = first.split(0.3, seed=1)
    mask = np.isin(first.coordinate("document"), held.coordinate("document"))
    for a in range(3):
        for b in range(4):
            x, y = values(first, a), values(second, b)
            for name, source, target in (("forth", x, y), ("back", y, x)):
                model = LinearRegression().fit(source[~mask], target[~mask])
                expected = r2_score(target[mask], model.predict(source[mask]))
                at = found.sel(a=a, b=b)
                assert float(at[name]) == pytest.approx(expected, abs=1e-5)
                assert float(at[f"{name}_low"]) < float(at[name]) < float(at[f"{name}_high"])
    assert found.attrs["samples"] == mask.sum()


def test_the_maps_apply_to_states_and_ridge_is_honoured(runs: list[Any], tmp_path: Any) -> None:
    maps = between.fit_between(*runs, ridge=10.0)
    pair = ("wide8:resid", 1), ("wide12:resid", 2)
    model = Ridge(alpha=10.0).fit(values(runs[0], 1), values(runs[1], 2))
    np.testing.assert_allclose(maps[pair].matrix, model.coef_.T, atol=1e-6)
    x = values(runs[0], 1)[:5]
    np.testing.assert_allclose(maps[pair](x), model.predict(x), atol=1e-5)
    maps.save(tmp_path / "m.safetensors")
    again = actstore.load_maps(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again[pair].bias, maps[pair].bias)
    assert len(maps) == 3 * 4


def test_a_rotated_copy_is_recovered_exactly(runs: list[Any]) -> None:
    from store_like import memory_run

    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    rows = rng.normal(size=(90, 6))
    one, other = memory_run([rows], model="a"), memory_run([rows @ turn + 1], model="b")
    found = between.scores(one, other, parts=3)
    assert float(found.forth.squeeze()) == pytest.approx(1, abs=1e-9)
    assert float(found.back.squeeze()) == pytest.approx(1, abs=1e-9)


def test_refusals_name_the_reason(runs: list[Any]) -> None:
    first, second = runs
    with pytest.raises(GramError, match="names"):
        between.scores(first, first)
    apart = second.isel(sample=second.coordinate("document") > 20)
    with pytest.raises(GramError, match="no samples in common"):
        between.fit_between(first.isel(sample=first.coordinate("document") < 20), apart)
    narrow = first.sel(layer=[0, 1])
    narrow.sites.clear()
    with pytest.raises(AnalysisError, match="no 'resid'"):
        between.scores(narrow, second)


def test_saved_drawn_and_reported(runs: list[Any], tmp_path: Any) -> None:
    found = between.scores(*runs, parts=4)
    results.save(found, tmp_path / "b.zarr")
    assert results.load(tmp_path / "b.zarr").identical(found)
    assert len(plots.between(found).axes) == 3
    page = report.build(tmp_path / "r.html", [found]).read_text("utf-8")
    assert "layer of wide12" in page
    assert len(report.findings([found])) == 2
