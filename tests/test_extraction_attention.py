"""What rounding depends on is part of what a run was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import KeyMismatchError

TEXT = [f"the cat {n} sat on mat {n * 7} and looked" for n in range(9)]


def test_attention_and_dtype_are_recorded_and_never_mixed(
    tiny_llama: Any, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    """CASES 11: rows of another implementation, or of other precision, are of another run."""
    tiny_llama.save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")

    def extract(attention: str, dtype: str) -> actstore.Run:
        model = actstore.load_model(
            tmp_path / "model", attn_implementation=attention, dtype=dtype, name="tiny"
        )
        return actstore.extract(model, TEXT, tmp_path / "s", corpus_name="c", dtype="float32")

    made = extract("sdpa", "float32")
    told = made.info()["key"]["model"]
    assert (told["attn_implementation"], told["dtype"]) == ("sdpa", "float32")
    with pytest.raises(KeyMismatchError, match=r"attn_implementation is 'sdpa', asked for 'eager'"):
        extract("eager", "float32")
    with pytest.raises(KeyMismatchError, match=r"dtype is 'float32', asked for 'bfloat16'"):
        extract("sdpa", "bfloat16")
    again = extract("sdpa", "float32")
    np.testing.assert_array_equal(again.resid.values, made.resid.values)
