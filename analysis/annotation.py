"""Are the decoded tokens plausible? Blinded sheets for people, and what they answered.

"Jump to Conclusions" (arXiv 2303.09435) §4 asks annotators of 50 sentences × (L + 1) layers ×
{mat, id} whether the five tokens decoded there fit the sentence, without saying which method or
layer they see. `export` writes such a sheet from what `analysis.prediction.peek` returned, as CSV
and as an HTML page to annotate in; `read` takes the filled ones back; `rates` says what came out.
"""

from __future__ import annotations

import csv
import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr

from actstore.errors import AnalysisError
from analysis import results
from analysis.judgements import rates
from analysis.peeking import readable, visible

__all__ = ["QUESTION", "Sheet", "export", "rates", "read"]

QUESTION = "Is any of these tokens plausible at the blank?"
_COLUMNS = ("instance", "text", "tokens", "plausible")
_ANSWERS = {"1": 1.0, "yes": 1.0, "y": 1.0, "true": 1.0, "0": 0.0, "no": 0.0, "n": 0.0}
_ANSWERS["false"] = 0.0
# What a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Sheet:
    """Files of an exported sheet.

    Attributes
    ----------
    table, page : Path
        CSV, and self-contained HTML: for annotators.
    key : Path
        Which instance is which sample, layer and method: not for annotators.
    """

    table: Path
    page: Path
    key: Path


def export(
    peeked: xr.Dataset,
    folder: str | os.PathLike[str],
    *,
    question: str = QUESTION,
    seed: int = 0,
) -> Sheet:
    """Write a blinded, shuffled sheet with one row for each sample, layer and method.

    Parameters
    ----------
    peeked : xarray.Dataset
        What `analysis.prediction.peek` returned. Its context is shown (for masked models the text
        behind the mask too), and its tokens in their order; neither probabilities, layers,
        methods nor the model's answer.
    folder : path
        Made where needed; ``sheet.csv``, ``sheet.html`` and ``key.json`` are written there.
        Annotators get one of the first two, never the last.
    question : str
        What is asked of each row; answered by yes or no.
    seed : int
        Of the shuffle.

    Returns
    -------
    Sheet

    Raises
    ------
    AnalysisError
        Not a result of ``peek``, or the folder holds the key of another sheet.
    """
    if peeked.attrs.get("kind") != "peek":
        raise AnalysisError(
            f"a result of kind {peeked.attrs.get('kind')!r} given; analysis.prediction.peek makes "
            "what is annotated"
        )
    target = Path(folder)
    places = [
        (s, layer, shortcut)
        for s in range(peeked.sizes["sample"])
        for layer in peeked.layer.values.tolist()
        for shortcut in peeked.shortcut.values.tolist()
    ]
    order = np.random.default_rng(seed).permutation(len(places))
    rows: list[tuple[int, str, list[str]]] = []
    key = []
    texts = _texts(peeked)
    for instance, number in enumerate(order.tolist(), start=1):
        s, layer, shortcut = places[number]
        at = peeked.isel(sample=s)
        tokens = at.token.sel(layer=layer, shortcut=shortcut).values
        shown = [visible(token) for token in tokens]
        rows.append((instance, texts[s], shown))
        key.append([instance, int(peeked.sample[s]), int(layer), str(shortcut)])
    record = {
        "question": question,
        "seed": seed,
        "instances": key,
        "title": peeked.attrs["title"],
        "provenance": results.read_provenance(peeked),
    }
    sheet = Sheet(target / "sheet.csv", target / "sheet.html", target / "key.json")
    kept = json.dumps(record, ensure_ascii=False, indent=1)
    if sheet.key.exists() and sheet.key.read_text(encoding="utf-8") != kept:
        raise AnalysisError(f"{target} holds the key of another sheet; give another folder")
    target.mkdir(parents=True, exist_ok=True)
    with sheet.table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(_COLUMNS)
        for instance, text, shown in rows:
            writer.writerow([instance, _unformula(text), _unformula("  |  ".join(shown)), ""])
    template = (Path(__file__).parent / "templates" / "annotate.html").read_text(encoding="utf-8")
    shown_rows = [dict(zip(_COLUMNS, row, strict=False)) for row in rows]
    data = json.dumps(shown_rows).replace("<", "\\u003c")
    page = template.replace("{{question}}", html.escape(question)).replace("{{rows}}", data)
    sheet.page.write_text(page, encoding="utf-8")
    sheet.key.write_text(kept, encoding="utf-8")
    return sheet


def read(key: str | os.PathLike[str], sheets: Mapping[str, str | os.PathLike[str]]) -> xr.Dataset:
    """Read filled sheets back and join them with the key.

    Parameters
    ----------
    key : path
        ``key.json`` of the sheet, or its folder.
    sheets : mapping of annotator to path
        CSV (the column ``plausible`` filled with yes/no or 1/0; empty: not judged) or the JSON
        that the page saves.

    Returns
    -------
    xarray.Dataset
        ``plausible`` (annotator, instance): 1, 0, or NaN where not judged. Coordinates
        ``sample``, ``layer`` and ``shortcut`` on ``instance``.

    Raises
    ------
    AnalysisError
        A file that is missing or not such a sheet, an unknown answer or instance, or the same
        instance twice; it says where.
    """
    path = Path(key)
    path = path / "key.json" if path.is_dir() else path
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        instances = record["instances"]
    except (OSError, ValueError, KeyError) as error:
        raise AnalysisError(
            f"no key of a sheet at {path}; analysis.annotation.export writes it"
        ) from error
    if not sheets:
        raise AnalysisError("no filled sheets; give them by annotator, {'ann': 'sheet.csv'}")
    numbers = {int(entry[0]): place for place, entry in enumerate(instances)}
    judged = np.full((len(sheets), len(instances)), np.nan)
    for row, (annotator, file) in enumerate(sheets.items()):
        seen = set()
        for where, number, answer in _answers(Path(file)):
            if number not in numbers or number in seen:
                what = "is there twice" if number in seen else "is not of this sheet"
                raise AnalysisError(f"{annotator}: {where}: instance {number} {what}")
            seen.add(number)
            judged[row, numbers[number]] = answer
    _, samples, layers, shortcuts = zip(*instances, strict=True)
    dataset = xr.Dataset(
        {"plausible": (("annotator", "instance"), judged)},
        coords={
            "annotator": list(sheets),
            "instance": list(numbers),
            "sample": ("instance", list(samples)),
            "layer": ("instance", list(layers)),
            "shortcut": ("instance", list(shortcuts)),
        },
        attrs={"question": record["question"]},
    )
    return results.label(dataset, "judgements", record["title"], record["provenance"])


def _texts(peeked: xr.Dataset) -> list[str]:
    """What is shown of each sample, ``___`` where the tokens would stand."""
    model = results.read_provenance(peeked).get("model", {})
    if model.get("causal", True):
        return [f"{readable(text)} ___" for text in peeked.context.values]
    both = zip(peeked.context.values, peeked.continuation.values, strict=True)
    return [f"{readable(text)} (___) {readable(rest)}" for text, rest in both]


def _answers(path: Path) -> list[tuple[str, int, float]]:
    """(where, instance, answer) of a filled sheet."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            entries = [(f"{path.name}", k, v) for k, v in json.loads(text)["answers"].items()]
        else:
            reader = csv.DictReader(text.splitlines())
            entries = [
                (f"{path.name} line {reader.line_num}", row["instance"], row["plausible"])
                for row in reader
            ]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise AnalysisError(
            f"{path} is not a filled sheet ({error}); it has the columns {', '.join(_COLUMNS)}, or "
            "is the JSON that the page saves"
        ) from error
    found = []
    for where, number, answer in entries:
        said = str("" if answer is None else answer).strip().lower()
        if not said:
            continue
        if said not in _ANSWERS or not str(number).strip().isdigit():
            raise AnalysisError(f"{where}: answer {answer!r} to {number!r}; say yes, no or nothing")
        found.append((where, int(number), _ANSWERS[said]))
    return found


def _unformula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
