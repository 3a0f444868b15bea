"""What is wrong with a fit is said before a row is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actstore.errors import FitError
from actstore.fitting import fit, procrustes


class Unread:
    """Rows that nobody may ask for."""

    model, corpus, dtype, n_samples, state = "m", "c", "float32", 100, "complete"
    sites: dict[str, list[int]] = {"resid": [0, 1]}  # noqa: RUF012

    def width(self, site: str) -> int:
        return 4

    def row_blocks(self, max_rows: int) -> list[Any]:
        raise AssertionError("rows were asked for")

    def read(self, *_: Any, **__: Any) -> np.ndarray:
        raise AssertionError("rows were read")


@pytest.mark.parametrize("call", [fit, procrustes])
def test_an_unknown_name_of_pairs(call: Any) -> None:
    with pytest.raises(FitError, match="pairs='adjacnt' is not known: choose one of all"):
        call(Unread(), pairs="adjacnt")
