"""The Gram equals the dense product, however the work is cut, and adds and subtracts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.errors import GramError, NonFiniteError, SiteError
from actstore.grams import Gram, compute_gram, gram, make_plan
from actstore.grams.columns import select_columns
from tests.grams.gram_fakes import MemoryRun, joined, run_of, stream, whole

shapes = st.fixed_dictionaries(
    {
        "n": st.integers(1, 40),
        "width": st.integers(1, 7),
        "layers": st.integers(1, 6),
        "seed": st.integers(0, 9),
        "dtype": st.sampled_from(["float32", "float16"]),
        "shard_rows": st.integers(1, 50),
    }
)


def close(found: np.ndarray, expected: np.ndarray, scale: np.ndarray | None = None) -> None:
    """Equal to within float64 rounding of the largest entries that were added up."""
    size = np.abs(expected).max() if scale is None else np.abs(scale).max()
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13 * (size + 1e-300))


def planned(run: MemoryRun, **options: int) -> Gram:
    return compute_gram(run, make_plan(run, select_columns(run, None, None), **options))


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(1, 50), st.integers(1, 5), st.integers(1, 4))
def test_however_the_work_is_cut_it_is_the_dense_product(
    shape: dict, block_rows: int, workers: int, row_ranges: int
) -> None:
    run = run_of(**shape)
    found = planned(run, block_rows=block_rows, workers=workers, row_ranges=row_ranges)
    z = joined(run)
    assert found.n == len(z)
    close(whole(found), z.T @ z)
    centred = z - z.mean(axis=0)
    close(whole(found, centred=True), centred.T @ centred, z.T @ z)
    close(np.concatenate([found.mean(k) for k in found.layers]), z.mean(axis=0))
    close(
        np.concatenate([found.variance(k) for k in found.layers]),
        (centred**2).sum(axis=0),
        z.T @ z,
    )


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    """Of widths that are whole vectors, as models' are: BLAS rounds the rest of a row by the shape
    of the product."""
    run = run_of(n=600, width=96, layers=7, shard_rows=256)
    one, *others = (planned(run, workers=w, block_rows=256) for w in (1, 2, 3, 8))
    for other in others:
        np.testing.assert_array_equal(whole(one), whole(other))


def test_the_order_of_shards_does_not_matter() -> None:
    run = run_of(n=120, width=4, layers=3)
    order = np.r_[80:120, 0:40, 40:80]
    moved = MemoryRun(
        {"resid": {k: v[order] for k, v in run.arrays["resid"].items()}}, shard_rows=40
    )
    close(whole(gram(moved)), whole(gram(run)))


@settings(max_examples=40, deadline=None)
@given(shapes, st.data())
def test_parts_add_up_to_the_whole_and_come_apart_again(shape: dict, data: st.DataObject) -> None:
    shape = {**shape, "n": shape["n"] + 2}
    run = run_of(**shape)
    cut = data.draw(st.integers(1, run.n_samples - 1))
    first, second = (
        gram(MemoryRun({"resid": {k: v[part] for k, v in run.arrays["resid"].items()}}))
        for part in (slice(cut), slice(cut, None))
    )
    both, z = first + second, joined(run)
    assert both.n == run.n_samples
    close(whole(both), z.T @ z)
    close(whole(second + first, centred=True), whole(both, centred=True), z.T @ z)
    close(whole(both - second), whole(first), z.T @ z)
    close((both - second).mean(0), first.mean(0), z)


def test_a_large_mean_costs_no_digits() -> None:
    rng = np.random.default_rng(0)
    small = rng.integers(-8, 8, (4096, 3)).astype(np.float32)
    run = MemoryRun({"resid": {0: small + np.float32(1e6), 1: small}})
    found = gram(run).cross(0, 0, centred=True)
    exact = small.astype(np.float64) - small.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(found, exact.T @ exact, rtol=1e-13, atol=1e-9)


def test_a_constant_column_has_no_variance_at_all() -> None:
    values = np.random.default_rng(0).standard_normal((5000, 3)).astype(np.float32)
    values[:, 1] = np.float32(0.1)
    found = gram(MemoryRun({"resid": {0: values}}, shard_rows=1000))
    assert found.variance(0)[1] == 0
    assert found.variance(0)[0] > 4000


def test_sites_of_different_width_stand_side_by_side() -> None:
    resid, attn = stream(50, 5, 3), stream(50, 3, 2, seed=1)
    run = MemoryRun({"resid": resid, "attn": attn})
    assert gram(run).layers == [0, 1, 2]
    both = gram(run, sites=("resid", "attn"))
    assert both.layers == [("resid", 0), ("resid", 1), ("resid", 2), ("attn", 0), ("attn", 1)]
    close(both.cross(("attn", 1), ("resid", 2)), attn[1].T.astype(float) @ resid[2])
    z = joined(run)
    close(whole(both), z.T @ z)
    with pytest.raises(SiteError, match=r"several sites.*\('resid', 1\)"):
        both.cross(1, 1)


def test_selecting_keeps_the_numbers() -> None:
    run = run_of(layers=5)
    full = gram(run)
    for keys in ([1, 3], [3, 1], [4]):
        part = full.select(keys)
        assert part.layers == keys
        np.testing.assert_array_equal(part.cross(keys[0], keys[-1]), full.cross(keys[0], keys[-1]))
    close(whole(gram(run, layers=[1, -1])), whole(full.select([1, 4])))


def test_float32_products_are_flagged_and_keep_seven_digits() -> None:
    run = run_of(n=500)
    found = gram(run, precision="float32")
    assert found.provenance["precision"] == "float32"
    expected = whole(gram(run))
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    error = np.abs(whole(found) - expected) / scale
    assert 1e-12 < error.max() < 1e-6
    assert (found + gram(run)).provenance["precision"] == "float32"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_a_number_is_named(bad: float) -> None:
    run = run_of(n=50, shard_rows=16)
    run.arrays["resid"][2][[17, 40], 1] = bad
    with pytest.raises(NonFiniteError, match=r"m/c: resid layer 2 has NaN or infinity in rows 17;"):
        planned(run, block_rows=8)


def test_requests_that_cannot_be_met_say_why() -> None:
    run = run_of()
    with pytest.raises(
        SiteError,
        match=r"layer 13 asked for, but m has layers 0…2 \(0 is the embedding\)",
    ):
        gram(run, layers=[13])
    with pytest.raises(SiteError, match="site 'mlp' asked for, but m/c has resid"):
        gram(run, sites="mlp")
    with pytest.raises(GramError, match="precision='half' is not known"):
        gram(run, precision="half")
    with pytest.raises(GramError, match="no samples in view"):
        gram(run_of(n=0))
    with pytest.raises(GramError, match="memory='1 parsec' is not a size"):
        gram(run, memory="1 parsec")
    with pytest.raises(GramError, match="memory='100' is too little"):
        gram(run, memory="100")


def test_grams_of_different_things_do_not_combine() -> None:
    one = gram(run_of())
    with pytest.raises(GramError, match="different columns"):
        one + gram(run_of(layers=4))
    with pytest.raises(GramError, match="different models"):
        one + gram(run_of(fingerprint="g"))
    with pytest.raises(GramError, match="none would be left"):
        one - one


def test_provenance_names_every_run_that_went_in() -> None:
    a, b = gram(run_of(corpus="a", n=20)), gram(run_of(corpus="b", n=10))
    runs = (a + b - b).provenance["runs"]
    assert [(r["corpus"], r["n"], r["sign"]) for r in runs] == [
        ("a", 20, 1),
        ("b", 10, 1),
        ("b", 10, -1),
    ]
    assert repr(a + b) == "<Gram of m/a + m/b: resid layers 0…2, 30 rows, 0 MiB>"
