"""Sheets are blind, come back whole, and agreement equals worked examples of the literature."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis_fakes import FakeTokenizer, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.errors import AnalysisError
from analysis import annotation, prediction, results, stats
from analysis.agreement import cohen_kappa, krippendorff_alpha

NAN = float("nan")


def peeked(tokenizer: Any = None) -> Any:
    run, maps, model = tiny()
    if tokenizer is not None:
        model.tokenizer = tokenizer
    return prediction.peek(run, maps, model, [0, 3, 8], k=5)


def filled(sheet: annotation.Sheet, path: Path, answer: Any) -> Path:
    """A copy of the sheet with ``answer(instance)`` filled in."""
    with sheet.table.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, "plausible": answer(int(row["instance"]))})
    return path


def test_the_sheet_is_blind_shuffled_and_complete(tmp_path: Path) -> None:
    shown = peeked()
    sheet = annotation.export(shown, tmp_path, seed=1)
    key = json.loads(sheet.key.read_text())["instances"]
    assert [entry[0] for entry in key] == list(range(1, 25))
    expected = {(s, la, m) for s in (0, 3, 8) for la in range(4) for m in ("mat", "id")}
    assert {tuple(entry[1:]) for entry in key} == expected
    assert [tuple(entry[1:]) for entry in key] != sorted(tuple(entry[1:]) for entry in key)
    with sheet.table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row, (_, sample, layer, shortcut) in zip(rows, key, strict=True):
        at = shown.sel(sample=sample, layer=layer, shortcut=shortcut)
        assert row["text"] == at.context.item() + " ___"
        assert row["tokens"].count("|") == 4
        assert at.token.values[0].strip() in row["tokens"]
        assert row["plausible"] == ""
    for blind in (sheet.table.read_text(), sheet.page.read_text()):
        for word in ("shortcut", '"mat"', '"id"', "probability", "layer"):
            assert word not in blind
    again = annotation.export(shown, tmp_path / "again", seed=1)
    assert again.table.read_bytes() == sheet.table.read_bytes()
    assert annotation.export(shown, tmp_path, seed=1) == sheet
    with pytest.raises(AnalysisError, match="key of another sheet"):
        annotation.export(shown, tmp_path, seed=2)


def test_tokens_cannot_leave_the_page_or_become_formulas(tmp_path: Path) -> None:
    class Evil(FakeTokenizer):
        def decode(self, ids: Any, **_: Any) -> str:
            return "=cmd()</script><img src=x>\x1b[31m"

    sheet = annotation.export(peeked(Evil()), tmp_path)
    page = sheet.page.read_text()
    assert page.count("</script>") == 2
    assert "<img" not in page
    assert "\x1b" not in page + sheet.table.read_text()
    with sheet.table.open(newline="") as stream:
        for row in csv.DictReader(stream):
            assert row["text"].startswith("'=")
            assert row["tokens"].startswith("'=")
    assert "http" not in page.replace("http-equiv", "")


def test_rates_are_those_of_the_judgements(tmp_path: Path) -> None:
    sheet = annotation.export(peeked(), tmp_path)
    key = {entry[0]: entry[1:] for entry in json.loads(sheet.key.read_text())["instances"]}
    rng = np.random.default_rng(0)
    said = {name: {i: int(rng.random() < 0.6) for i in key} for name in ("ann", "bob")}
    del said["bob"][7]
    words = {0: "no", 1: "YES"}
    ann = filled(sheet, tmp_path / "ann.csv", lambda i: words[said["ann"][i]])
    bob = tmp_path / "bob.json"
    bob.write_text(json.dumps({"answers": said["bob"]}))
    got = annotation.read(tmp_path, {"ann": ann, "bob": bob})
    assert int(np.isnan(got.plausible).sum()) == 1
    found = annotation.rates(got)
    for shortcut in ("mat", "id"):
        answers, samples = [], []
        for name in said:
            for i, value in said[name].items():
                if key[i][2] == shortcut:
                    answers.append(value)
                    samples.append(key[i][0])
        expected = stats.proportion(answers, samples)
        assert float(found.rate.sel(shortcut=shortcut)) == pytest.approx(float(expected.value))
        assert float(found.rate_low.sel(shortcut=shortcut)) == pytest.approx(float(expected.low))
    by_place = {tuple(place): i for i, place in key.items()}
    wins = [
        said[name][by_place[s, la, "id"]] > said[name][by_place[s, la, "mat"]]
        for name in said
        for s in (0, 3, 8)
        for la in range(4)
        if by_place[s, la, "id"] in said[name] and by_place[s, la, "mat"] in said[name]
    ]
    assert len(wins) == 23
    assert float(found.id_beats_mat) == pytest.approx(np.mean(wins))
    both = [i for i in key if i in said["bob"]]
    kappa = cohen_kappa([said["ann"][i] for i in both], [said["bob"][i] for i in both])
    assert float(found.kappa.sel(annotator="ann", other="bob")) == pytest.approx(kappa)
    assert float(found.alpha) == pytest.approx(krippendorff_alpha(got.plausible.values))
    assert found.attrs["judgements"] == 47
    assert results.load(results.save(found, tmp_path / "a.zarr")).rate.equals(found.rate)
    alone = annotation.rates(annotation.read(sheet.key, {"ann": ann}))
    assert "kappa" not in alone


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("instance,plausible\n1,maybe\n", "line 2: answer 'maybe'"),
        ("instance,plausible\n99,yes\n", "instance 99 is not of this sheet"),
        ("instance,plausible\n1,yes\n1,no\n", "instance 1 is there twice"),
        ("a,b\n1,2\n", "not a filled sheet"),
    ],
)
def test_a_bad_sheet_is_refused_with_its_line(content: str, said: str, tmp_path: Path) -> None:
    sheet = annotation.export(peeked(), tmp_path)
    path = tmp_path / "filled.csv"
    path.write_text(content)
    with pytest.raises(AnalysisError, match=said):
        annotation.read(sheet.key, {"ann": path})
    with pytest.raises(AnalysisError, match="not a filled sheet"):
        annotation.read(sheet.key, {"ann": tmp_path / "absent.csv"})
    with pytest.raises(AnalysisError, match="no key of a sheet"):
        annotation.read(tmp_path / "absent", {"ann": path})
    path.write_text("instance,plausible\n1,\n")
    with pytest.raises(AnalysisError, match="nothing was judged"):
        annotation.rates(annotation.read(sheet.key, {"ann": path}))
    run, maps, model = tiny()
    with pytest.raises(AnalysisError, match="kind 'prediction'"):
        annotation.export(prediction.curves(run, maps, model), tmp_path)


def test_kappa_equals_cohens_own_example() -> None:
    """Cohen 1960, table 1: two judges, 200 subjects, three categories; κ = .492."""
    table = np.array([[88, 14, 18], [10, 40, 10], [2, 6, 12]])
    pairs = [(a, b) for a in range(3) for b in range(3) for _ in range(table[a, b])]
    one, other = zip(*pairs, strict=True)
    assert cohen_kappa(one, other) == pytest.approx(0.492, abs=5e-4)
    assert cohen_kappa([1, 0, 1], [1, 0, 1]) == 1
    assert np.isnan(cohen_kappa([1, NAN], [NAN, 1]))


def test_alpha_equals_krippendorffs_own_examples() -> None:
    """Krippendorff 2011: §A, two observers and ten units, .095; §C, with gaps, .743."""
    meg = [0, 1, 0, 0, 0, 0, 0, 0, 1, 0]
    owen = [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    assert krippendorff_alpha([meg, owen]) == pytest.approx(0.095, abs=5e-4)
    answers = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
    assert krippendorff_alpha(answers) == pytest.approx(0.743, abs=5e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_agreement_does_not_depend_on_order_or_names(seed: int) -> None:
    rng = np.random.default_rng(seed)
    answers = rng.integers(0, 3, (3, 20)).astype(float)
    answers[rng.random(answers.shape) < 0.2] = NAN
    alpha = krippendorff_alpha(answers)
    assert krippendorff_alpha(answers[::-1, rng.permutation(20)] * -7) == pytest.approx(alpha)
    assert cohen_kappa(answers[0], answers[1]) == pytest.approx(
        cohen_kappa(answers[1], answers[0]), nan_ok=True
    )
    assert alpha <= 1
