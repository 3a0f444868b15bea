"""Probes against scikit-learn's, fold by fold, and what keeps them honest."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.metrics import accuracy_score, f1_score
from stored_runs import stored_run

import actstore
from actstore.errors import AnalysisError, SiteError
from analysis import probing, report, stats
from analysis.probing.labels import make_task, shuffled
from analysis.windows import row_parts

N, WIDTH = 150, 6
KINDS = np.array(["press", "fiction", "learned"], object)


def made_up(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(2, N, WIDTH) rows and (N,) labels of documents of three samples: layer 1 shows them."""
    rng = np.random.default_rng(seed)
    labels = KINDS[rng.choice(3, N // 3, p=[0.5, 0.3, 0.2])].repeat(3)
    noise = rng.normal(size=(2, N, WIDTH)) * [3, 1, 1, 0.1, 20, 1] + 5
    for number, kind in enumerate(KINDS):
        noise[1, labels == kind, number] += 2.5
    noise[:, :, 5] = 7.5
    return noise.astype(np.float32), labels


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    return made_up()


@pytest.fixture(scope="module")
def run(
    data: tuple[np.ndarray, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> actstore.Run:
    states, labels = data
    return stored_run(tmp_path_factory.mktemp("s") / "s.zarr", states, {"genre": labels})


def scaled(train: np.ndarray, other: np.ndarray, standardise: bool) -> tuple[np.ndarray, ...]:
    mean, spread = train.mean(axis=0), train.std(axis=0)
    spread = np.where((spread > 1e-9) & standardise, spread, 1.0)
    return (train - mean) / spread, (other - mean) / spread


def by_scikit_learn(
    rows: np.ndarray, labels: np.ndarray, folds: np.ndarray, alphas: np.ndarray, standardise: bool
) -> np.ndarray:
    found = np.empty(len(rows), object)
    for fold in range(folds.max() + 1):
        train = folds != fold
        x, other = scaled(rows[train].astype(float), rows[~train].astype(float), standardise)
        model = RidgeClassifier(alpha=max(alphas[fold], 1e-10)).fit(x, labels[train].astype(str))
        found[~train] = model.predict(other)
    return found


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("method", ["ridge", "least_squares"])
def test_accuracy_and_f1_are_scikit_learns(
    run: actstore.Run, data: tuple[np.ndarray, np.ndarray], method: str, standardise: bool
) -> None:
    states, labels = data
    found = probing.accuracy(run, "genre", method=method, standardise=standardise, progress=False)
    folds = row_parts(run, "document", 5, 0)
    documents = np.arange(N) // 3
    for layer in (0, 1):
        at = found.sel(layer=layer)
        guess = by_scikit_learn(states[layer], labels, folds, at.ridge.values, standardise)
        assert float(at.accuracy) == accuracy_score(labels.astype(str), guess.astype(str))
        expected = f1_score(
            labels.astype(str), guess.astype(str), average="macro", labels=sorted(KINDS)
        )
        assert float(at.macro_f1) == pytest.approx(expected)
        interval = stats.proportion(labels == guess, documents)
        assert float(at.accuracy_low) == pytest.approx(float(interval.low))
        for kind in KINDS:
            inside = labels == kind
            recall = float(at.recall.sel({"class": kind}))
            assert recall == pytest.approx((guess == kind)[inside].mean())
    majority = np.empty(N, object)
    for fold in range(5):
        names, counts = np.unique(labels[folds != fold].astype(str), return_counts=True)
        majority[folds == fold] = names[counts.argmax()]
    assert float(found.majority) == (majority == labels).mean()
    gain = (guess == labels).astype(int) - (majority == labels)
    assert float(found.gain.sel(layer=1)) == pytest.approx(gain.mean())
    assert float(found.accuracy.sel(layer=1)) > float(found.accuracy.sel(layer=0)) + 0.2
    assert float(found.gain_low.sel(layer=1)) > 0


def test_the_ridge_is_the_inner_cross_validations(
    run: actstore.Run, data: tuple[np.ndarray, np.ndarray]
) -> None:
    states, labels = data
    ridges = (1e-4, 1e-2, 1.0, 100.0)
    found = probing.accuracy(run, "genre", ridges=ridges, progress=False)
    folds = row_parts(run, "document", 5, 0)
    targets = (labels[:, None] == np.array(sorted(KINDS), object)).astype(float)
    for layer in (0, 1):
        for outer in range(5):
            errors = np.zeros(len(ridges))
            for inner in set(range(5)) - {outer}:
                train = (folds != outer) & (folds != inner)
                rows = states[layer].astype(float)
                x, other = scaled(rows[train], rows[folds == inner], True)
                energy = (x**2).sum() / WIDTH
                for number, ridge in enumerate(ridges):
                    model = Ridge(alpha=ridge * energy).fit(x, targets[train])
                    errors[number] += ((model.predict(other) - targets[folds == inner]) ** 2).sum()
            train = folds != outer
            x, _ = scaled(states[layer][train].astype(float), states[layer][:1], True)
            expected = ridges[errors.argmin()] * (x**2).sum() / WIDTH
            assert float(found.ridge.sel(layer=layer, fold=outer)) == pytest.approx(expected)


def test_logistic_probes_are_scikit_learns(
    run: actstore.Run, data: tuple[np.ndarray, np.ndarray]
) -> None:
    states, labels = data
    found = probing.accuracy(run, "genre", method="logistic", layers=[1], progress=False)
    folds = row_parts(run, "document", 5, 0)
    guess = np.empty(N, object)
    for fold in range(5):
        train = folds != fold
        x, other = scaled(states[1][train].astype(float), states[1][~train].astype(float), True)
        model = LogisticRegression(max_iter=1000).fit(x, labels[train].astype(str))
        guess[~train] = model.predict(other)
    assert float(found.accuracy[0]) == pytest.approx((guess == labels).mean())
    several = probing.accuracy(
        run, "genre", method="logistic", layers=[1], ridges=[0.1, 1e4], progress=False
    )
    assert several.ridge.values.max() == 0.1


def test_the_control_is_at_chance_and_the_majority_is_no_gain(run: actstore.Run) -> None:
    found = probing.accuracy(run, "genre", progress=False)
    assert found.attrs["control"] == "clusters"
    one = found.sel(layer=1)
    assert float(one.control_accuracy) < float(found.majority_high)
    assert float(one.selectivity_low) > 0
    assert float(one.selectivity) == pytest.approx(float(one.accuracy - one.control_accuracy))
    again = probing.accuracy(run, "genre", progress=False)
    assert found.identical(again)
    other = probing.accuracy(run, "genre", seed=1, progress=False)
    assert not np.array_equal(other.control_accuracy, found.control_accuracy)


def test_the_controls_keep_classes_and_clusters(run: actstore.Run) -> None:
    task = make_task(run, "genre", 5, "document", 0)
    codes, kind = shuffled(task, "auto", 0)
    assert kind == "clusters"
    assert (codes.reshape(-1, 3) == codes[::3, None]).all()
    assert np.bincount(codes).tolist() == np.bincount(task.codes).tolist()
    assert not np.array_equal(codes, task.codes)
    free, kind = shuffled(task, "samples", 0)
    assert kind == "samples"
    assert not (free.reshape(-1, 3) == free[::3, None]).all()
    by_position = make_task(run, "position", 5, "document", 0)
    assert shuffled(by_position, "auto", 0)[1] == "samples"
    with pytest.raises(AnalysisError, match="one label for each cluster"):
        shuffled(by_position, "clusters", 0)
    folds = task.folds.reshape(-1, 3)
    assert (folds == folds[:, :1]).all()
    assert task.n_folds == 5


def test_labels_from_arrays_functions_and_with_gaps(run: actstore.Run) -> None:
    labels = run.samples.genre.values.copy()
    whole = probing.accuracy(run, "genre", layers=[1], progress=False)
    array = probing.accuracy(run, labels, layers=[-1], task="genre", progress=False)
    np.testing.assert_array_equal(array.accuracy, whole.accuracy)
    made = probing.accuracy(run, lambda s: s.genre.values, layers=[1], progress=False)
    np.testing.assert_array_equal(made.accuracy, whole.accuracy)
    labels[:30] = None
    gaps = probing.accuracy(run, labels, layers=[1], progress=False)
    assert (gaps.attrs["samples"], gaps.attrs["left_out"]) == (N - 30, 30)
    cut = probing.accuracy(
        run.isel(sample=slice(30, None)), labels[30:], layers=[1], progress=False
    )
    np.testing.assert_array_equal(gaps.accuracy, cut.accuracy)


def test_a_class_of_one_fold_is_never_found_but_counted(
    run: actstore.Run, data: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    labels = data[1].copy()
    labels[:3] = "verse"
    options = {"layers": [1], "method": "least_squares", "progress": False}
    with pytest.warns(UserWarning, match="'verse': all samples of such a class lie in one fold"):
        found = probing.accuracy(run, labels, **options)
    assert found.attrs["untrained"] == ["verse"]
    page = report.build(tmp_path / "r.html", [found]).read_text("utf-8")
    assert "verse is a class of one fold only" in page
    assert float(found.recall.sel({"class": "verse"})[0]) == 0
    assert int(found.class_count.sel({"class": "verse"})) == 3
    folds = row_parts(run, "document", 5, 0)
    documents = [3 * np.flatnonzero(folds[::3] == fold)[0] for fold in (0, 1)]
    for first in documents:  # in two documents of different folds it can be learned
        labels[first : first + 3] = "verse"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert probing.accuracy(run, labels, **options).attrs["untrained"] == []


def test_more_features_than_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = KINDS[rng.integers(0, 2, 12)].repeat(3)
    states = rng.normal(size=(1, 36, 50)).astype(np.float32)
    run = stored_run(tmp_path / "s.zarr", states, {"genre": labels})
    found = probing.accuracy(
        run, "genre", method="least_squares", standardise=False, progress=False
    )
    folds = row_parts(run, "document", 5, 0)
    guess = np.empty(36, object)
    for fold in range(5):
        train = folds != fold
        x, other = scaled(states[0][train].astype(float), states[0][~train].astype(float), False)
        signs = np.where(labels[train] == KINDS[0], 1.0, -1.0)
        weights = np.linalg.pinv(x) @ (signs - signs.mean())
        guess[~train] = np.where(other @ weights + signs.mean() > 0, KINDS[0], KINDS[1])
    assert float(found.accuracy[0]) == pytest.approx((guess == labels).mean())


def test_what_cannot_be_probed_is_refused(run: actstore.Run) -> None:
    for options, message in (
        ({"labels": "genres"}, r"coordinate 'genres' .*did you mean 'genre'\?.* has document"),
        ({"labels": np.zeros(7)}, "expected one for each of the 150"),
        ({"labels": np.zeros(N)}, "two classes or more"),
        ({"method": "svm"}, "method='svm' is not known"),
        ({"folds": 1}, "folds=1"),
        ({"folds": 2}, "needs at least 3"),
        ({"folds": 60}, "60 folds need as many clusters, but there are 50"),
        ({"ridges": [-1.0]}, "give numbers ≥ 0"),
        ({"method": "logistic", "ridges": [0.0]}, "give numbers > 0"),
        ({"method": "least_squares", "ridges": [1.0]}, "takes no ridges"),
        ({"control": "none"}, "control='none'"),
    ):
        with pytest.raises(AnalysisError, match=message):
            probing.accuracy(run, **{"labels": "genre", **options})
    with pytest.raises(SiteError, match="layer 5 asked for"):
        probing.accuracy(run, "genre", layers=[5])
    with pytest.raises(SiteError, match="site 'attn'"):
        probing.accuracy(run, "genre", site="attn")


def test_without_scikit_learn_only_logistic_is_missing() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from analysis import probing\nfrom analysis.probing import logistic\n"
        "try:\n    logistic.require()\n"
        "except ImportError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingDependencyError method='logistic' needs scikit-learn")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_macro_f1_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    true, guess = map(list, zip(*pairs, strict=True))
    confusion = np.zeros((4, 4), np.int64)
    for t, g in pairs:
        confusion[t, g] += 1
    expected = f1_score(true, guess, average="macro", labels=range(4), zero_division=0)
    assert probing.macro_f1(confusion) == pytest.approx(expected)
