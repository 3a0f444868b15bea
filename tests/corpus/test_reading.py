"""Corpora read from files, folders, datasets and iterables; and the errors of bad ones."""

from __future__ import annotations

import bz2
import datetime
import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from actstore.corpus import Corpus, Document, read_corpus
from actstore.errors import CorpusError


def texts(corpus: Corpus) -> list[str | None]:
    return [document.text for document in corpus]


def write_json_lines(path: Path, records: list[object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_text_file_has_a_document_for_every_line_that_is_not_blank(tmp_path: Path) -> None:
    path = tmp_path / "my wiki.v2.txt"
    path.write_bytes("\ufeffFirst – line.\r\n\n   \nSecond\u2028still second.\nno end".encode())
    corpus = read_corpus(path)
    assert corpus.name == "my-wiki.v2"
    assert texts(corpus) == ["First – line.", "Second\u2028still second.", "no end"]
    assert texts(corpus) == texts(corpus)


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files_read_as_plain_ones(tmp_path: Path, suffix: str, compress: object) -> None:
    assert callable(compress)
    text = tmp_path / f"a.txt{suffix}"
    text.write_bytes(compress(b"one\ntwo\n"))
    lines = tmp_path / f"b.jsonl{suffix}"
    lines.write_bytes(compress(b'{"text": "one", "k": 1}\n'))
    assert texts(read_corpus(text)) == ["one", "two"]
    assert read_corpus(text).name == "a"
    assert list(read_corpus(lines)) == [Document("one", metadata={"k": 1})]


def test_json_lines_give_text_id_and_scalar_fields(tmp_path: Path) -> None:
    path = write_json_lines(
        tmp_path / "c.jsonl",
        [
            {"text": "a", "id": 7, "genre": "news", "year": 1961, "tags": ["x"], "gone": None},
            {"text": "b", "genre": "fiction", "year": 1962, "good": True},
        ],
    )
    first, second = read_corpus(path)
    assert first == Document("a", id="7", metadata={"genre": "news", "year": 1961})
    assert second.metadata == {"genre": "fiction", "year": 1962, "good": True}
    assert second.id is None


def test_field_names_and_kept_metadata_are_choices(tmp_path: Path) -> None:
    path = write_json_lines(tmp_path / "c.jsonl", [{"body": "a", "key": "k1", "x": 1, "token": 2}])
    corpus = read_corpus(path, text_field="body", id_field="key", metadata=["x"])
    assert list(corpus) == [Document("a", id="k1", metadata={"x": 1})]
    assert [column.name for column in corpus.survey.columns] == ["x"]


def test_pretokenised_records_need_no_text(tmp_path: Path) -> None:
    path = write_json_lines(tmp_path / "c.jsonl", [{"input_ids": [3, 1, 2], "label": "x"}])
    (document,) = read_corpus(path)
    assert document.input_ids == (3, 1, 2)
    assert document.text is None


def test_parquet_and_datasets_read_as_their_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    day = datetime.date(2020, 1, 2)
    rows = {"text": ["a", "b"], "score": [0.5, 1.5], "day": [day, day], "tags": [["x"], []]}
    dataset = datasets.Dataset.from_dict(rows)
    path = tmp_path / "rows.parquet"
    dataset.to_parquet(path)
    expected = [
        Document("a", metadata={"score": 0.5, "day": "2020-01-02"}),
        Document("b", metadata={"score": 1.5, "day": "2020-01-02"}),
    ]
    assert list(read_corpus(path)) == expected
    assert list(read_corpus(dataset)) == expected
    assert list(read_corpus(dataset.to_iterable_dataset())) == expected
    assert read_corpus(path).fingerprint() == read_corpus(dataset).fingerprint()
    with pytest.raises(CorpusError, match="pass one split"):
        read_corpus(datasets.DatasetDict(train=dataset))


def test_folder_has_a_document_for_every_text_file(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.txt").write_text("two\nlines\n")
    (tmp_path / "a.TXT").write_text("one")
    (tmp_path / "c.md").write_text("not this")
    corpus = read_corpus(tmp_path)
    assert [(d.id, d.text) for d in corpus] == [("a.TXT", "one"), ("b/2.txt", "two\nlines")]
    assert corpus.name == tmp_path.name


def test_one_shot_iterators_can_be_read_again_even_at_once() -> None:
    one_shot = ({"text": f"text {i}", "n": np.int64(i)} for i in range(5))
    corpus = read_corpus(one_shot)
    assert [(a.text, b.metadata) for a, b in zip(corpus, corpus, strict=True)] == [
        (f"text {i}", {"n": i}) for i in range(5)
    ]
    again = read_corpus([{"text": f"text {i}", "n": i} for i in range(5)])
    assert corpus.fingerprint() == again.fingerprint()


def test_limit_and_name_apply_to_every_source() -> None:
    corpus = read_corpus(["a", "b", "c"], name="abc")
    assert read_corpus(corpus) is corpus
    assert texts(read_corpus(corpus, limit=2)) == ["a", "b"]
    assert read_corpus(corpus, name="other").name == "other"


def test_fingerprint_covers_all_that_is_in_a_document() -> None:
    variants = [
        [Document("a"), Document("b")],
        [Document("b"), Document("a")],
        [Document("a", id="x"), Document("b")],
        [Document("a", metadata={"k": "1"}), Document("b")],
        [Document("a", metadata={"k": 1}), Document("b")],
        [Document("a", input_ids=[1]), Document("b")],
        [Document("ab")],
        [Document("a"), Document("b"), Document("")],
    ]
    prints = [read_corpus(documents).fingerprint() for documents in variants]
    assert len(set(prints)) == len(variants)
    assert all(len(value) == 64 for value in prints)
    same = [Document("a", id="0", metadata={}), Document("b", id="1")]
    assert read_corpus(same).fingerprint() == prints[0]


def test_survey_finds_the_type_of_every_column() -> None:
    survey = read_corpus(
        [
            Document("a", metadata={"s": "x", "i": 1, "f": 1, "b": True, "hole": 2, "yes": True}),
            Document("b", metadata={"s": "y", "i": 2, "f": 0.5, "b": False, "hole": None}),
        ]
    ).survey
    dtypes = {column.name: column.dtype for column in survey.columns}
    assert dtypes == {"s": object, "i": "i8", "f": "f8", "b": bool, "hole": "f8", "yes": "f8"}
    assert survey.n_documents == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"good\nb\xff\n", r"line 2: byte 0xff at 1 is not UTF-8"),
        (b"", r"is empty"),
        (b"\n \n", r"is empty"),
    ],
)
def test_bad_text_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "c.txt"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=message) as caught:
        list(read_corpus(path))
    assert "c.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', r"line 2: not JSON"),
        ("[1]", r"line 2: expected an object .* got a list"),
        ('{"txt": "a"}', r"line 2: field 'text' asked for, but the record has 'txt'"),
        ('{"text": 3}', r"line 2: a document's text is a str, not int"),
        ('{"text": "\\ud800"}', r"line 2: .*surrogate"),
        ('{"input_ids": [1, "x"]}', r"line 2: input_ids holds 'x'"),
        ('{"input_ids": [-1]}', r"line 2: input_ids holds -1"),
        (f'{{"text": "a", "n": {2**63}}}', r"line 2: metadata 'n' is .* beyond 64 bits"),
    ],
)
def test_bad_json_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(CorpusError, match=message):
        list(read_corpus(path))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([{"token": "x"}, {}], r"document 0: metadata key 'token' is a name that the store"),
        ([{}, {"../x": 1}], r"document 1: metadata key '../x' cannot name a coordinate"),
        ([{"k": 1}, {"k": "x"}], r"document 1: metadata 'k' is 'x' \(str\), but .* have int"),
        ([{"k": True}, {"k": 1}], r"document 1: metadata 'k' is 1 \(int\), but .* have bool"),
        ([{"k": None}, {}], r"metadata 'k' has no value in any document"),
    ],
)
def test_metadata_that_cannot_be_a_coordinate_is_refused(
    metadata: list[dict[str, object]], message: str
) -> None:
    corpus = read_corpus([Document("x", metadata=m) for m in metadata])  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match=message):
        corpus.fingerprint()


def test_sources_that_are_no_corpus_are_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("text\nx\n")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"text " * 9999)[:40])
    (tmp_path / "folder").mkdir()
    (tmp_path / "no.parquet").write_text("x")
    for source, message in [
        (tmp_path / "nowhere.txt", "no such file or folder"),
        (tmp_path / "table.csv", r"\.csv is not read"),
        (tmp_path / "cut.txt.gz", "cannot be read after line 0"),
        (tmp_path / "folder", r"holds no \.txt file"),
        (tmp_path / "no.parquet", "not a readable parquet file"),
        (5, "not int"),
        ([], "is empty"),
        (iter([]), "is empty"),
        ({"text": ["a"]}, "a mapping with keys 'text' is not a corpus"),
        ([3], "document 0: expected a text, a record with fields or a Document, got int"),
    ]:
        with pytest.raises(CorpusError, match=message):
            read_corpus(source)  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match="limit=0"):
        read_corpus(["a"], limit=0)
    with pytest.raises(CorpusError, match=r"corpus name '\.\./x'"):
        read_corpus(["a"], name="../x")
    with pytest.raises(CorpusError, match="needs a text or input_ids"):
        Document()
