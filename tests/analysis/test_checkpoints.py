"""Checkpoints side by side, and that their differences are paired."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from stored_runs import stored_run, stream

import actstore
from actstore.errors import AnalysisError
from analysis import checkpoints, linearity


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, actstore.Run]:
    """Three models whose steps are noisier and noisier, from the same rows."""
    folder = tmp_path_factory.mktemp("s") / "s.zarr"
    return {
        f"step {k}": stored_run(folder, stream(90, 5, 2, noise=noise), model=f"m{k}")
        for k, noise in enumerate((0.1, 0.3, 0.9))
    }


def test_scores_are_those_of_each_run(runs: dict[str, actstore.Run]) -> None:
    found = checkpoints.compare(runs, orthogonal=True, progress=False)
    assert found.attrs["kind"] == "checkpoints"
    assert found.checkpoint.values.tolist() == list(runs)
    for name, run in runs.items():
        alone = linearity.scores(run, progress=False)
        for variable in alone.data_vars:
            np.testing.assert_allclose(
                found[variable].sel(checkpoint=name), alone[variable], err_msg=str(variable)
            )
    np.testing.assert_allclose(found.mean_score, found.score.mean("source"))
    change = found.score - found.score.sel(checkpoint="step 0")
    np.testing.assert_allclose(found.score_change, change)
    np.testing.assert_allclose(
        found.mean_score_no_residual_change, found.score_no_residual_change.mean("source")
    )
    assert (found.mean_score_change.values[1:] < 0).all()


def test_changes_are_paired(runs: dict[str, actstore.Run]) -> None:
    found = checkpoints.compare(runs, base="step 1", progress=False)
    same = found.sel(checkpoint="step 1")
    for name in ("score_change", "score_change_low", "score_change_high", "mean_score_change_low"):
        np.testing.assert_array_equal(same[name], np.zeros_like(same[name]))
    twice = checkpoints.compare(
        {"a": runs["step 0"], "b": runs["step 0"]}, parts=5, progress=False
    ).sel(checkpoint="b")
    assert (twice.score_change_high == 0).all()
    assert (twice.score_high > twice.score).all()


def test_all_pairs_have_a_table_for_each(runs: dict[str, actstore.Run]) -> None:
    found = checkpoints.compare(runs, pairs="all", progress=False)
    assert found.score.dims == ("checkpoint", "source", "target")
    assert "orthogonal" not in found
    expected = np.nanmean(found.score.values, axis=(1, 2))
    np.testing.assert_allclose(found.mean_score, expected)


def test_runs_that_do_not_belong_together_are_refused(
    runs: dict[str, actstore.Run], tmp_path: Path
) -> None:
    one = runs["step 0"]
    with pytest.raises(AnalysisError, match="two checkpoints or more"):
        checkpoints.compare({"a": one})
    with pytest.raises(AnalysisError, match="base='c' is not among 'a', 'b'"):
        checkpoints.compare({"a": one, "b": one}, base="c")
    with pytest.raises(AnalysisError, match="other layers"):
        checkpoints.compare({"a": one, "b": one.sel(layer=[0, 1])})
    with pytest.raises(AnalysisError, match="numbers of samples"):
        checkpoints.compare({"a": one, "b": one.isel(sample=slice(60))})
    other = stored_run(
        tmp_path / "s.zarr", stream(90, 5, 2), {"token_id": np.arange(90, dtype=np.int32)}
    )
    with pytest.raises(AnalysisError, match="differ in 'token_id'"):
        checkpoints.compare({"a": one, "b": other})
