"""Transport operators against scikit-learn's regressions and CCA on rows paired by a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score
from store_like import memory_run

from actstore.errors import AnalysisError, GramError
from analysis import plots, report, results, transport

WIDTH, LAYERS = 4, 3


@pytest.fixture(scope="module")
def runs():
    """40 documents of 10 tokens; a token's state is carried on in part to the next token's."""
    rng = np.random.default_rng(0)
    turn = [rng.normal(size=(WIDTH, WIDTH)) for _ in range(LAYERS)]
    layers = [rng.normal(size=(400, WIDTH)) + 2]
    for layer in range(1, LAYERS):
        before = layers[-1]
        moved = np.vstack([before[:1], before[:-1]])
        layers.append(np.tanh(before) @ turn[layer] + 0.7 * moved + rng.normal(size=(400, WIDTH)))
    run = memory_run(layers, documents=np.repeat(np.arange(40), 10), positions=np.arange(400) % 10)
    return run.split(0.4, seed=1)


def paired(run, source, target, offset):
    """By a loop over all pairs of samples."""
    x, y = run.resid.sel(layer=source).values, run.resid.sel(layer=target).values
    document, position = run.coordinate("document"), run.coordinate("position")
    places = {(d, p): k for k, (d, p) in enumerate(zip(document, position, strict=True))}
    left, right, groups = [], [], []
    for (d, p), k in places.items():
        if (d, p + offset) in places:
            left.append(x[k])
            right.append(y[places[d, p + offset]])
            groups.append(d)
    return np.array(left, float), np.array(right, float), np.array(groups)


@pytest.mark.parametrize("ridge", [0.0, 5.0])
def test_scores_equal_scikit_learn_on_pairs_made_by_a_loop(runs, ridge):
    train, held_out = runs
    found = transport.operators(train, held_out, offsets=(0, 1, 3), ridge=ridge, parts=None)
    model = Ridge(alpha=ridge) if ridge else LinearRegression()
    for offset in (0, 1, 3):
        for source in range(LAYERS):
            for target in range(LAYERS):
                at = found.sel(offset=offset, source=source, target=target)
                if target < source or (target == source and not offset):
                    assert np.isnan(at.r2)
                    continue
                x, y, _ = paired(held_out, source, target, offset)
                model.fit(*paired(train, source, target, offset)[:2])
                guess = model.predict(x)
                assert float(at.r2) == pytest.approx(r2_score(y, guess), abs=1e-8)
                values, vectors = np.linalg.eigh(np.cov(y.T))
                white = vectors / np.sqrt(values)
                expected = r2_score((y - y.mean(0)) @ white, (guess - y.mean(0)) @ white)
                assert float(at.r2_white) == pytest.approx(expected, abs=1e-8)
                best = LinearRegression().fit(x, y).predict(x)
                most = r2_score((y - y.mean(0)) @ white, (best - y.mean(0)) @ white)
                assert float(at.ceiling) == pytest.approx(most, abs=1e-8)
                assert float(at.dimension) == pytest.approx(most * WIDTH, abs=1e-7)
                assert float(at.efficiency) == pytest.approx(expected / most, abs=1e-7)
                assert float(at.r2_white) <= float(at.ceiling) + 1e-12
        assert int(found.samples.sel(offset=offset)) == len(paired(held_out, 0, 0, offset)[0])


def test_on_its_own_samples_least_squares_reaches_the_ceiling(runs):
    train, _ = runs
    found = transport.operators(train, train, offsets=(0, 1), parts=None)
    reached = found.efficiency.values
    np.testing.assert_allclose(reached[~np.isnan(reached)], 1, atol=1e-9)


def test_intervals_hold_the_value_and_leave_documents_out(runs):
    found = transport.operators(*runs, offsets=(1,), parts=6)
    at = found.sel(offset=1, source=0, target=1)
    for name in transport.SCORES:
        assert float(at[f"{name}_low"]) < float(at[name]) < float(at[f"{name}_high"])
    plain = transport.operators(*runs, offsets=(1,), parts=None)
    np.testing.assert_allclose(plain.r2, found.r2)


def test_the_maps_themselves_and_ridge_by_cross_validation(runs):
    train, _ = runs
    maps = transport.fit_operators(train, 2, pairs=[(0, 1)], ridge=[0.0, 1e6])
    (pair,) = maps
    assert pair == (("t:resid", 0), ("t+2:resid", 1))
    x, y, _ = paired(train, 0, 1, 2)
    model = Ridge(alpha=maps[pair].ridge).fit(x, y)
    np.testing.assert_allclose(maps[pair].matrix, model.coef_.T, atol=1e-7)
    np.testing.assert_allclose(maps[pair].bias, model.intercept_, atol=1e-6)
    low = transport.fit_operators(train, 0, pairs=[(0, 2)], rank=1)
    assert np.linalg.matrix_rank(low[0, 2].matrix) == 1


def test_refusals_name_the_reason(runs):
    train, held_out = runs
    with pytest.raises(AnalysisError, match="offsets"):
        transport.operators(train, held_out, offsets=(-1,))
    with pytest.raises(AnalysisError, match="two layers"):
        transport.operators(train.sel(layer=1), held_out.sel(layer=1))
    with pytest.raises(GramError, match="positions='all'"):
        transport.operators(train, held_out, offsets=(10,))


def test_saved_drawn_and_reported(runs, tmp_path):
    found = transport.operators(*runs, offsets=(0, 1), parts=5)
    results.save(found, tmp_path / "t.zarr")
    assert results.load(tmp_path / "t.zarr").identical(found)
    assert len(plots.transport(found).axes) == 5  # two panels for each offset and a bar
    assert "2508.17540" in report.build(tmp_path / "r.html", [found]).read_text("utf-8")
    assert "token ahead" in " ".join(report.findings([found]))
