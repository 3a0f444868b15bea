"""Transfer tables against plain loops over maps, corpora and samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from analysis_fakes import tiny
from rerun_models import Case

import actstore
from actstore.errors import AnalysisError
from analysis import prediction, r2, results, stats, transfer


def test_predictions_equal_the_curves_of_each_combination() -> None:
    a, maps_a, model = tiny(n=30, seed=1)
    b, maps_b, _ = tiny(n=41, seed=2)
    runs, maps = {"a": a, "b": b, "c": b}, {"a": maps_a, "b": maps_b}
    got = transfer.predictions(maps, runs, model, ks=(1, 3), progress=False)
    assert got.fitted_on.values.tolist() == ["a", "b", "id"]
    hits = {}
    for fitted in ("a", "b", "id"):
        for corpus, run in runs.items():
            curve = prediction.curves(
                run,
                maps.get(fitted),
                model,
                ks=(1, 3),
                per_sample=True,
                progress=False,
                shortcuts=("id",) if fitted == "id" else ("mat",),
            ).squeeze("shortcut")
            at = got.sel(fitted_on=fitted, evaluated_on=corpus)
            for end in ("", "_low", "_high"):
                np.testing.assert_allclose(at["precision" + end], curve["precision" + end])
                np.testing.assert_allclose(at["surprisal" + end], curve["surprisal" + end])
            hits[fitted, corpus] = (curve.sample_rank.values[:3] < 3).mean(axis=0)
            expected = stats.mean(hits[fitted, corpus], run.samples.document.values)
            assert float(at.mean_precision.sel(k=3)) == pytest.approx(float(expected.value))
            assert float(at.mean_precision_low.sel(k=3)) == pytest.approx(float(expected.low))
    cost = stats.mean(hits["b", "b"] - hits["a", "b"], b.samples.document.values)
    at = got.sel(fitted_on="a", evaluated_on="b", k=3)
    assert float(at.cost) == pytest.approx(float(cost.value))
    assert float(at.cost_high) == pytest.approx(float(cost.high))
    assert (got.cost.sel(fitted_on="a", evaluated_on="a") == 0).all()
    assert np.isnan(got.cost.sel(evaluated_on="c")).all()


def test_r2_equals_the_grams_and_its_intervals_hold_it(case: Any, tmp_path: Any) -> None:
    at: Case = case("gpt2")
    other = actstore.fit(at.held_out, ridge=1e-2)
    maps, runs = {"x": at.maps, "y": other}, {"x": at.run, "y": at.held_out}
    got = transfer.r2(maps, runs, resamples=50)
    assert got.source.values.tolist() == [0, 1, 2, 3]
    for name, fitted in maps.items():
        for corpus, run in runs.items():
            expected = r2.heat_maps(fitted, run, progress=False).r2.sel(target=4)
            at_pair = got.sel(fitted_on=name, evaluated_on=corpus)
            np.testing.assert_allclose(at_pair.r2, expected.sel(shortcut="mat"), rtol=1e-5)
            identity = got.sel(fitted_on="id", evaluated_on=corpus)
            np.testing.assert_allclose(identity.r2, expected.sel(shortcut="id"), rtol=1e-5)
            assert float(at_pair.mean_r2) == pytest.approx(float(at_pair.r2.mean()))
    swapped = got.sel(fitted_on="y", evaluated_on="x")
    own = got.sel(fitted_on="x", evaluated_on="x")
    assert float(swapped.r2_cost) == pytest.approx(float(own.mean_r2 - swapped.mean_r2))
    assert (got.r2_low <= got.r2_high).all()
    one = transfer.r2(maps, runs, pairs=[(1, 2)], resamples=10)
    expected = r2.heat_maps(at.maps, at.held_out, progress=False).r2
    assert float(one.r2.sel(fitted_on="x", evaluated_on="y")[0]) == pytest.approx(
        float(expected.sel(shortcut="mat", source=1, target=2)), rel=1e-5
    )
    assert results.load(results.save(got, tmp_path / "t.zarr")).r2.equals(got.r2)


def test_resampled_r2_is_that_of_the_resampled_rows() -> None:
    rng = np.random.default_rng(0)
    y, predicted = rng.normal(5, 1, (2, 12, 3))
    clusters = np.repeat([0, 1, 2, 3], [2, 5, 1, 4])
    codes, counts = stats.resampled_counts(clusters, 12, 20, seed=1)
    found = transfer._resampled_r2(predicted, y, codes, counts)
    for draw, value in zip(counts, found, strict=True):
        rows = [
            i for c in range(4) for _ in range(int(draw[c])) for i in np.flatnonzero(codes == c)
        ]
        sse = ((predicted[rows] - y[rows]) ** 2).sum(axis=0)
        sst = ((y[rows] - y[rows].mean(axis=0)) ** 2).sum(axis=0)
        if (sst > 1e-9).all():
            assert value == pytest.approx((1 - sse / sst).mean())


def test_refusals() -> None:
    a, maps, model = tiny()
    fewer = a.isel(slice(0, 9))
    fewer.sites = {"resid": [0, 3]}
    with pytest.raises(AnalysisError, match="same layers"):
        transfer.predictions({"a": maps}, {"a": a, "b": fewer}, model)
    with pytest.raises(AnalysisError, match="'id' is the baseline"):
        transfer.predictions({"id": maps}, {"a": a}, model)
    with pytest.raises(AnalysisError, match="no map 0 → 1 among those of 'a'"):
        transfer.r2({"a": maps}, {"a": a}, pairs=[(0, 1)])
