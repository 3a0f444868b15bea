"""Orthogonal maps equal scipy's Procrustes on the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes

from actstore.errors import FitError
from actstore.fitting import load_maps, procrustes
from actstore.grams import gram
from tests.grams.gram_fakes import MemoryRun, run_of, stream


@settings(max_examples=30, deadline=None)
@given(
    st.integers(12, 50),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 30.0]),
    st.integers(0, 9),
)
def test_rotations_are_scipys(
    n: int, width: int, centre: bool, scale: bool, mean: float, seed: int
) -> None:
    run = run_of(n, width, 3, seed=seed, mean=mean)
    maps = procrustes(run, centre=centre, scale=scale)
    for i, j in maps:
        x, y = (run.arrays["resid"][k].astype(np.float64) for k in (i, j))
        means = (x.mean(axis=0), y.mean(axis=0)) if centre else (0.0, 0.0)
        rotation, total = orthogonal_procrustes(x - means[0], y - means[1])
        factor = total / ((x - means[0]) ** 2).sum() if scale else 1.0
        found = maps[i, j]
        np.testing.assert_allclose(found.matrix, factor * rotation, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(
            found(x), (x - means[0]) @ rotation * factor + means[1], rtol=1e-6, atol=1e-4
        )
        assert (found.method, found.rank, found.bias is None) == ("procrustes", width, not centre)


def test_a_hidden_rotation_is_found(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 6))
    rotation = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    arrays = {0: x, 1: 2.5 * x @ rotation + 7.0}
    run = MemoryRun({"resid": arrays}, dtype="float64")
    maps = procrustes(gram(run), scale=True)
    np.testing.assert_allclose(maps[0, 1].matrix, 2.5 * rotation, atol=1e-12)
    assert float(maps.r2(run).sel(source=0, target=1)) == pytest.approx(1)
    back = procrustes(run, pairs=[(1, 0)], scale=True)[1, 0]
    np.testing.assert_allclose((maps[0, 1] @ back)(x), x, atol=1e-12)
    maps.save(tmp_path / "maps")
    again = load_maps(tmp_path / "maps")
    assert again.provenance["orthogonal"] == {"scale": True}
    assert np.isnan(again[0, 1].degrees_of_freedom)


def test_widths_must_agree() -> None:
    run = MemoryRun({"attn": stream(50, 5, 1), "mlp": stream(50, 3, 1, seed=1)})
    with pytest.raises(FitError, match=r"attn\.0 has 5 features and mlp\.0 has 3"):
        procrustes(run)
