"""Similarities equal what samples × samples kernels, plain QR and scikit-learn give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes
from sklearn.cross_decomposition import CCA
from store_like import memory_run

from actstore.errors import AnalysisError
from actstore.grams import align, gram
from analysis import plots, report, results, similarity


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    first = rng.normal(size=(90, 5)) * [9, 3, 1, 0.5, 0.1] + 4
    second = np.tanh(first @ rng.normal(size=(5, 5))) + 0.5 * rng.normal(size=(90, 5)) - 2
    third = rng.normal(size=(90, 5))
    return [values.astype(np.float32).astype(float) for values in (first, second, third)]


def centred(values):
    return values - values.mean(axis=0)


def kernel_cka(x, y):
    """By definition, with n × n kernels (Kornblith et al. 2019, eq. 1 to 3)."""
    n = len(x)
    h = np.eye(n) - np.ones((n, n)) / n
    k, m = x @ x.T, y @ y.T

    def hsic(one, other):
        return np.trace(one @ h @ other @ h)

    return hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))


def qr_correlations(x, y):
    """The cosines of the angles between the column spaces."""
    qx, _ = np.linalg.qr(centred(x))
    qy, _ = np.linalg.qr(centred(y))
    return np.linalg.svd(qx.T @ qy, compute_uv=False)


def plain_svcca(x, y, variance):
    kept = []
    for values in (centred(x), centred(y)):
        u, s, _ = np.linalg.svd(values, full_matrices=False)
        share, k = 0.0, 0
        while share < variance * (1 - 1e-12):
            share, k = share + s[k] ** 2 / (s**2).sum(), k + 1
        kept.append(u[:, :k] * s[:k])
    return qr_correlations(*kept).mean(), [part.shape[1] for part in kept]


def plain_pwcca(x, y):
    x, y = centred(x), centred(y)
    qx, _ = np.linalg.qr(x)
    qy, _ = np.linalg.qr(y)
    u, rho, _ = np.linalg.svd(qx.T @ qy)
    variates = qx @ u
    weights = []
    for i in range(len(rho)):
        weights.append(sum(abs(variates[:, i] @ x[:, j]) for j in range(x.shape[1])))
    return sum(r * w for r, w in zip(rho, weights, strict=True)) / sum(weights)


def plain_procrustes(x, y):
    x, y = centred(x), centred(y)
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    turn, _ = orthogonal_procrustes(x, y)
    return np.linalg.norm(x @ turn - y) ** 2


def test_every_measure_equals_its_definition(rows):
    found = similarity.layers(memory_run(rows), variance=0.95)
    for i, x in enumerate(rows):
        for j, y in enumerate(rows):
            at = found.sel(a=i, b=j)
            assert float(at.cka) == pytest.approx(kernel_cka(x, y), rel=1e-9)
            svcca, kept = plain_svcca(x, y, 0.95)
            assert float(at.svcca) == pytest.approx(svcca, rel=1e-8)
            assert [int(at.components), int(at.components_b)] == kept
            assert float(at.pwcca) == pytest.approx(plain_pwcca(x, y), rel=1e-8)
            assert float(at.procrustes) == pytest.approx(plain_procrustes(x, y), abs=1e-9)


def test_svcca_of_all_components_is_scikit_learns_cca(rows):
    x, y = rows[0], rows[1]
    one, other = CCA(n_components=5, scale=False, max_iter=20_000, tol=1e-12).fit_transform(x, y)
    rho = [np.corrcoef(one[:, k], other[:, k])[0, 1] for k in range(5)]
    found = similarity.layers(memory_run(rows), measures=["svcca"], variance=1)
    assert float(found.svcca.sel(a=0, b=1)) == pytest.approx(np.mean(rho), abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 100), shift=st.floats(-10, 10))
def test_rotation_scale_and_shift_change_nothing(seed, scale, shift):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(40, 4)), rng.normal(size=(40, 4))
    turn, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    found = similarity.layers(memory_run([x, y, scale * x @ turn + shift]))
    near = 1e-6 + 20 * abs(shift) / scale * 2**-24  # rows are float32
    for measure in similarity.MEASURES:
        table = found[measure]
        if measure in ("cka", "procrustes", "svcca"):
            assert float(table.sel(a=1, b=2)) == pytest.approx(float(table.sel(a=1, b=0)), abs=near)
        same = 0 if measure == "procrustes" else 1
        assert float(table.sel(a=0, b=2)) == pytest.approx(same, abs=near)
        assert float(table.sel(a=0, b=0)) == pytest.approx(same, abs=1e-9)
        assert float(table.min()) >= 0
        assert float(table.max()) <= 1 + 1e-9 + (measure == "procrustes")


def test_two_runs_of_other_widths_on_the_samples_they_share(rows):
    rng = np.random.default_rng(1)
    wide = [rng.normal(size=(90, 7)), rows[0] @ rng.normal(size=(5, 7))]
    wide = [values.astype(np.float32).astype(float) for values in wide]
    a = memory_run(rows, model="small", keep=range(80))
    b = memory_run(wide, model="large", keep=range(10, 90))
    found = similarity.layers(a, b)
    assert found.a.values.tolist() == ["small:resid.0", "small:resid.1", "small:resid.2"]
    assert found.b.values.tolist() == ["large:resid.0", "large:resid.1"]
    assert found.attrs["samples"] == 70
    for i, x in enumerate(rows):
        for j, y in enumerate(wide):
            at = found.isel(a=i, b=j)
            assert float(at.cka) == pytest.approx(kernel_cka(x[10:80], y[10:80]), rel=1e-8)
    joint = similarity.layers(gram(align(a, b)), measures=["cka"])
    np.testing.assert_allclose(joint.cka.values[:3, 3:], found.cka.values, rtol=1e-9)


def test_intervals_are_the_jackknifes_over_parts(rows):
    run = memory_run(rows)
    found = similarity.layers(run, measures=["cka"], parts=6)
    numbers = gram(run, parts=6).parts
    assert len(numbers) == 6
    at = found.sel(a=0, b=1)
    assert float(at.cka_low) < float(at.cka) < float(at.cka_high)
    more = similarity.layers(run, measures=["cka"], parts=15).sel(a=0, b=1)
    assert float(more.cka) == pytest.approx(float(at.cka))
    same = found.sel(a=0, b=0)
    assert float(same.cka_high - same.cka_low) == pytest.approx(0, abs=1e-9)


def test_what_cannot_be_is_refused(rows):
    run = memory_run(rows)
    with pytest.raises(AnalysisError, match="rsa"):
        similarity.layers(run, measures=["rsa"])
    with pytest.raises(AnalysisError, match="variance=0"):
        similarity.layers(run, variance=0)
    with pytest.raises(AnalysisError, match="align"):
        similarity.layers(gram(run), run)
    with pytest.raises(AnalysisError, match=r"resid\.1 is the same in all"):
        similarity.layers(memory_run([rows[0], np.ones((90, 5))]))


def test_saved_drawn_and_reported(rows, tmp_path):
    found = similarity.layers(memory_run(rows))
    results.save(found, tmp_path / "s.zarr")
    assert results.load(tmp_path / "s.zarr").identical(found)
    assert len(plots.similarity(found).axes) == 8  # a map and its colour bar for each
    page = report.build(tmp_path / "r.html", [found]).read_text("utf-8")
    assert "Kornblith" in page
    (sentence,) = report.findings([found])
    assert "CKA" in sentence
