"""Tiny models with stored runs, extracted once for all tests that run models again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from rerun_models import Case, make_case


@pytest.fixture(scope="session", autouse=True)
def _one_thread_for_small_models() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def case(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_tokenizer: Any,
    bos_tokenizer: Any,
    bert_tokenizer: Any,
) -> Callable[[str], Case]:
    """``case("gpt2")`` (or "opt", "llama", "bert"): a model, its runs and its maps."""
    tokenizers = {"llama": bos_tokenizer, "bert": bert_tokenizer}
    made: dict[str, Case] = {}

    def of(family: str) -> Case:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            made[family] = make_case(family, tokenizers.get(family, tiny_tokenizer), folder)
        return made[family]

    return of
