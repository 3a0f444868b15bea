"""A transformers model and its tokenizer put in a folder, whole or not at all."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4


def save_model(model: Any, folder: Path, tokenizer: Any = None) -> None:
    """``save_pretrained`` of both, in the place of a model that is there.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    folder : path
        Replaced as a whole.
    tokenizer : transformers tokenizer, optional
    """
    from transformers.utils import logging

    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.parent / f".{folder.name}.{uuid4().hex}"
    bar = logging.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        model.save_pretrained(scratch)
        if tokenizer is not None:
            tokenizer.save_pretrained(scratch)
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if bar:
            logging.enable_progress_bar()
