"""Spectra equal what NumPy's SVD gives; the mean cosine equals a loop over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from store_like import memory_run

from actstore.errors import AnalysisError
from actstore.grams import gram
from analysis import jackknife, plots, report, results, spectra


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    one = rng.normal(size=(60, 6)) * [8, 4, 2, 1, 0.5, 0.01] + 3
    one[7] = 0
    two = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 6)) - 10
    return [values.astype(np.float32).astype(float) for values in (one, two)]


def loop_cosine(values):
    total, pairs = 0.0, 0
    for i in range(len(values)):
        for j in range(len(values)):
            norms = np.linalg.norm(values[i]) * np.linalg.norm(values[j])
            if i != j and norms > 0:
                total, pairs = total + values[i] @ values[j] / norms, pairs + 1
    return total / pairs


def test_everything_equals_its_definition(rows):
    found = spectra.layers(memory_run(rows), fractions=(0.5, 0.9, 1.0))
    for layer, values in enumerate(rows):
        at = found.sel(layer=layer)
        sigma = np.linalg.svd(values - values.mean(axis=0), compute_uv=False)
        sigma = sigma[sigma > 1e-6]
        p = sigma / sigma.sum()
        # The rank-3 layer's other singular values are about 1e-7 of the first, not 0.
        assert float(at.effective_rank) == pytest.approx(np.exp(-sum(p * np.log(p))), rel=1e-4)
        share = sigma**2 / sum(sigma**2)
        assert float(at.participation_ratio) == pytest.approx(1 / sum(share**2), rel=1e-6)
        assert float(at.top_share) == pytest.approx(share[0], rel=1e-6)
        np.testing.assert_allclose(at.spectrum[: len(share)], share, rtol=1e-6, atol=1e-12)
        mean = values.mean(axis=0)
        second = np.mean([row @ row for row in values])
        assert float(at.mean_share) == pytest.approx(mean @ mean / second, rel=1e-6)
        for fraction in (0.5, 0.9):
            total, k = 0.0, 0
            while total < fraction:
                total, k = total + share[k], k + 1
            assert int(at.rank_for.sel(fraction=fraction)) == k
        assert float(at.mean_cosine) == pytest.approx(loop_cosine(values), rel=1e-9)
    assert found.no_direction.values.tolist() == [1, 0]


def test_known_spectra():
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]] * 5, float)
    found = spectra.layers(memory_run([signs, np.hstack([signs[:, :1], np.zeros((20, 1))])]))
    np.testing.assert_allclose(found.effective_rank, [2, 1])
    np.testing.assert_allclose(found.participation_ratio, [2, 1])
    np.testing.assert_allclose(found.top_share, [0.5, 1])
    np.testing.assert_allclose(found.mean_share, [0, 0])
    same = np.tile([3.0, 4.0], (20, 1)) * np.arange(1, 21)[:, None]
    np.testing.assert_allclose(spectra.layers(memory_run([same])).mean_cosine, [1])


def test_cosine_intervals_are_a_jackknife_over_groups_of_documents(rows):
    documents = np.repeat(np.arange(5), 12)
    found = spectra.layers(memory_run(rows, documents=documents, positions=np.arange(60) % 12))
    left = [[loop_cosine(v[documents != d]) for v in rows] for d in range(5)]
    whole = [loop_cosine(values) for values in rows]
    expected = jackknife.interval(whole, left, [12] * 5)
    np.testing.assert_allclose(found.mean_cosine_low, expected.low, rtol=1e-7)
    np.testing.assert_allclose(found.mean_cosine_high, expected.high, rtol=1e-7)


def test_a_gram_gives_the_same_and_its_parts_give_intervals(rows):
    run = memory_run(rows)
    whole = spectra.layers(run, cosines=False)
    parts = spectra.layers(gram(run, parts=5), cosines=False)
    np.testing.assert_allclose(parts.effective_rank, whole.effective_rank)
    assert (parts.effective_rank_low < parts.effective_rank).all()
    assert "mean_cosine" not in whole
    assert "effective_rank_low" not in whole


def test_what_cannot_be_is_refused(rows):
    with pytest.raises(AnalysisError, match=r"fractions=\(0,\)"):
        spectra.layers(memory_run(rows), fractions=(0,))
    with pytest.raises(AnalysisError, match=r"resid\.0 is the same in all"):
        spectra.layers(memory_run([np.ones((9, 4))]))


def test_saved_drawn_and_reported(rows, tmp_path):
    found = spectra.layers(memory_run(rows))
    results.save(found, tmp_path / "s.zarr")
    assert results.load(tmp_path / "s.zarr").identical(found)
    assert len(plots.spectra(found).axes) == 3
    assert "Roy" in report.build(tmp_path / "r.html", [found]).read_text("utf-8")
    assert "effective rank runs from" in report.findings([found])[0]
