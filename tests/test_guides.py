"""The code of the README and of every guide runs, on a small model and a few sentences.

A block that begins with ``<!-- not run: why -->`` on the line above it is left out; all other
``python`` and ``bash`` blocks of a page run in their order, in one folder and one namespace.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from small_tokenizers import byte_level
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from examples import guide

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "examples" / "guides"
PAGES = [ROOT / "README.md", *sorted(GUIDES.glob("*.md"))]
PHRASE = "the river the city reads the words one after another for light and the fish"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model under both names, and two texts of 80 documents."""
    folder = tmp_path_factory.mktemp("guide")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=12,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    end = "<|endoftext|>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level([end]), bos_token=end, eos_token=end, unk_token=end
    )
    for name in guide.MODELS:
        LlamaForCausalLM(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    rng = np.random.default_rng(0)
    for name in guide.TEXTS:
        lines = [" ".join(["the", *rng.choice(PHRASE.split(), 11)]) for _ in range(80)]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def here(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with links to the model and the texts, which is the current one."""
    for entry in sources.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An S3 server of our own with an empty bucket."""
    import urllib.request

    pytest.importorskip("obstore")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    request = urllib.request.Request(f"http://{host}:{port}/bucket", method="PUT")
    urllib.request.urlopen(request).close()
    yield
    server.stop()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_code_of_a_page_runs(page: Path, here: Path, request: pytest.FixtureRequest) -> None:
    found = guide.blocks(page)
    if page.stem == "s3":
        request.getfixturevalue("bucket")
    if page.stem == "README" and page.parent == GUIDES:
        assert found == []
        return
    assert found
    guide.run(page)


def test_a_guide_is_a_script(
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["guide", "query", "--model", str(sources / "my-model")]
    words += ["--text", str(sources / "wiki.txt"), "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    before = Path.cwd()
    guide.main()
    assert Path.cwd() == before
    told = capsys.readouterr().out
    for block in guide.blocks(GUIDES / "query.md"):
        assert block.code in told
    assert (tmp_path / "out" / "query" / "acts.zarr" / "zarr.json").is_file()
    with pytest.raises(SystemExit, match="query is not empty: name another with --output"):
        guide.main()


def test_every_link_of_a_page_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_guide_is_in_the_list() -> None:
    listed = re.findall(r"\(([a-z0-9-]+\.md)\)", (GUIDES / "README.md").read_text())
    assert sorted(listed) == sorted(p.name for p in GUIDES.glob("*.md") if p.name != "README.md")
