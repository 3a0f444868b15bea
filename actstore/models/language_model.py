"""`LanguageModel`: a transformers model whose states can be captured and decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from actstore.errors import ModelError
from actstore.models.batch import check_out, flat_rows
from actstore.models.capture import capture_rows
from actstore.models.examined import ExaminedModel
from actstore.models.names import Layers, Names
from actstore.models.provenance import (
    library_versions,
    quantisation,
    tokenizer_fingerprint,
    weights_fingerprint,
)
from actstore.models.sites import SiteSpec
from actstore.wording import count


class LanguageModel(ExaminedModel):
    """A model, its tokenizer, and what the load-time probe found out about it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Left as it is: training flags, hooks and parameters are untouched or put back.
    tokenizer : optional
        Needed only where text is involved.
    name : str, optional
        Label used in stores; default: the last part of the model's id or folder.
    origin : dict, optional
        Where the weights came from, for `describe`.
    part : {"encoder", "decoder"}, optional
        Of an encoder-decoder, whose states are meant; see `actstore.load_model`.

    Attributes
    ----------
    name : str
    n_blocks, width, vocab_size : int
    causal : bool
        Whether later tokens leave earlier states alone; found by trial, not from the config.
    max_length : int or None
        Longest sequence that a learned position table allows.
    has_head : bool
        Whether `decode` is possible.
    sites : dict of str to SiteSpec
        ``resid`` (layer 0…L; layer 0 enters the first block, layer L is taken **before** the
        final norm), ``final_norm`` (what the head is given), ``embed`` (the token embedding),
        and inside the blocks those of ``ln1``, ``attn``, ``resid_mid``, ``ln2``, ``mlp`` that the
        architecture has. ``hidden_states[-1]`` of transformers is ``final_norm`` for most
        decoders and ``resid`` layer L for others; it is not a name here.
    refused : dict of str to str
        Sites that other architectures have, with the reason why this one does not.

    Raises
    ------
    UnsupportedModelError
        A check of the probe failed; the message names it.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        name: str | None = None,
        origin: Mapping[str, Any] | None = None,
        part: Literal["encoder", "decoder"] | None = None,
    ) -> None:
        super().__init__(model, tokenizer, name=name, part=part)
        self._origin = dict(origin or {})
        self._fingerprint: str | None = None
        found = self._found
        self.n_blocks = len(self.blocks)
        self.width: int = found.sites["resid"].width
        self.vocab_size: int = found.vocab_size
        self.causal: bool = found.causal
        self.max_length: int | None = found.max_length
        self.sites: dict[str, SiteSpec] = found.sites
        self.refused: dict[str, str] = found.refused
        self._names = Names(
            self.name,
            self.n_blocks,
            found.sites,
            found.refused,
            found.equal,
            found.hidden_states,
            found.post_norm,
        )

    def __repr__(self) -> str:
        kind = "causal" if self.causal else "bidirectional"
        return (
            f"<LanguageModel {self.name}: {type(self.model).__name__}, "
            f"{count(self.n_blocks, 'block')} × "
            f"{self.width}, {kind}, sites {', '.join(self.sites)}>"
        )

    @property
    def has_head(self) -> bool:
        """Whether the model has a head from states to vocabulary logits."""
        return self._found.head is not None

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """The dtype of the rows that `capture` gives."""
        names = {torch.float16: "float16", torch.float64: "float64"}
        return np.dtype(names.get(self.dtype, "float32"))

    @property
    def aliases(self) -> dict[str, str]:
        """Other names that `resolve` takes, with the site each leads to.

        ``*`` stands for a block's (or layer's) number; ``resid + 1`` is layer b + 1 for block b.
        """
        return {
            name: f"{place.site} + {place.shift}" if place.shift else place.site
            for name, place in self._names.known.items()
            if name not in self.sites
        }

    def resolve(
        self, sites: Sequence[str] | str = ("resid",), layers: Layers = None
    ) -> dict[str, list[int]]:
        """Turn names of places and layer numbers into sites with sorted absolute numbers.

        Parameters
        ----------
        sites : str or sequence of str
            Names out of `sites`, or others of the same places:

            * ``attn.in``, ``mlp.in``, ``ln1.in``, ``ln2.in``, ``attn.out``, ``mlp.out``: what a
              sub-layer itself takes and returns (`sites` has those that are no other site);
            * module paths: ``model.layers.3.mlp`` (what it returns), ``model.layers.3.mlp.in``;
            * those of `aliases`, such as ``blocks.3.hook_resid_post`` of TransformerLens;
            * ``hidden_states[4]`` of transformers: what *enters* block 4, so layer 4. The last
              one is ``final_norm`` in most models, and a warning says so;
            * ``attn[-1]``: a site with its number; numbers in a name may be negative, or ``*``;
            * patterns over all of these: ``*``, ``ln*``, ``blocks.[0-3].hook_mlp_out``.
        layers : int, slice or sequence of int, optional
            Layers of the stream, and blocks for what is counted by blocks; negative ones count
            from the end. Default: all. Not for names that have a number of their own. Sites with
            one place only (``embed``, ``final_norm``) give [0].

        Raises
        ------
        SiteError
            A site or number that the model does not have.
        """
        return self._names.resolve(sites, layers)

    def capture(
        self,
        input_ids: Sequence[np.ndarray],
        positions: Sequence[np.ndarray],
        wanted: Mapping[str, Sequence[int]],
        *,
        out: Mapping[str, np.ndarray] | None = None,
        at: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Run one batch and return the wanted states at the wanted positions.

        Parameters
        ----------
        input_ids : sequence of int arrays
            Token ids of each sequence; of different lengths, padded here on the right.
        positions : sequence of int arrays
            For each sequence the positions to keep, 0 ≤ position < length, in any order.
        wanted : mapping of site to absolute numbers
            As `resolve` gives it.
        out : mapping of site to ndarray (numbers wanted, any number of rows, width), optional
            Written to instead of fresh memory, whose first use takes longer than the copy itself;
            contiguous, of `row_dtype`.
        at : (rows,) int array, optional
            The rows of ``out`` to write, each once. Default: the first ones.

        Returns
        -------
        dict of str to ndarray (numbers wanted, rows, width)
            Rows follow ``input_ids``, then ``positions``. Of `row_dtype`: float32, or float16 or
            float64 for models of that dtype (bfloat16 gives float32, exactly). ``out``, if given.

        Raises
        ------
        ModelError
            Ids or positions that the model does not have; an ``out`` of another shape or dtype.

        Notes
        -----
        A row equals the same text run alone up to rounding: in float32 the difference stays
        below 1e-4 of the row's norm; in float16 about 1e-2 and in bfloat16 about 5e-2, since
        matrix products are summed in another order for another batch shape.
        """
        size = self._embedding.weight.shape[0]
        rows = flat_rows(self.name, input_ids, positions, size, self.max_length)
        if out is not None:
            at = np.arange(len(rows)) if at is None else at
            widths = {site: self.sites[site].width for site in wanted}
            check_out(out, at, wanted, widths, len(rows), self.row_dtype)
        if len(rows) == 0:
            empty = {
                site: np.empty((len(numbers), 0, self.sites[site].width), self.row_dtype)
                for site, numbers in wanted.items()
            }
            return empty if out is None else dict(out)
        found = self._found
        with self.exclusive():
            states = capture_rows(
                self.stack,
                found.tail,
                found.inner,
                self.sites,
                self._embedding,
                list(input_ids),
                rows,
                wanted,
                pad_id=self.pad_id,
                dtype=self.dtype,
                out=None if out is None else {s: torch.from_numpy(out[s]) for s in wanted},
                at=at,
            )
        return {site: one.numpy() for site, one in states.items()} if out is None else dict(out)

    def decode(self, hidden: np.ndarray, *, normed: bool = False) -> np.ndarray:
        """Decode states of the last layer into logits, ``head(final_norm(h))``.

        Parameters
        ----------
        hidden : (n, width) array
            States of ``resid`` layer L, before the final norm (or mapped there from another
            layer: "Jump to Conclusions", arXiv 2303.09435, §4). For masked language models the
            head is the whole prediction head.
        normed : bool
            ``hidden`` is from ``final_norm`` already.

        Returns
        -------
        (n, vocabulary) float32 array
            The model's own logits, soft-cap and scale included.

        Raises
        ------
        ModelError
            The model has no head, or the width is another one.
        """
        found = self._found
        if found.head is None:
            raise ModelError(
                f"{self.name} has no language-model head (it is loaded as "
                f"{type(self.model).__name__}), so states cannot be decoded; load a checkpoint "
                "with one (…ForCausalLM, …ForMaskedLM)"
            )
        width = found.tail.width if normed else self.width
        if hidden.ndim != 2 or hidden.shape[1] != width:
            raise ModelError(
                f"states of shape {hidden.shape} given to decode, expected (n, {width}) for "
                f"{'final_norm' if normed else f'layer {self.n_blocks}'} of {self.name}"
            )
        with self.exclusive():
            device = found.head_device
            rows = torch.from_numpy(np.ascontiguousarray(hidden)).to(device, self.dtype)
            return found.head(rows if normed else found.tail(rows))

    @cached_property
    def _tokenizer_fingerprint(self) -> str | None:
        return tokenizer_fingerprint(self.tokenizer)

    def fingerprint(self) -> str:
        """SHA-256 of the weights: names, shapes, dtypes and bytes. Computed once.

        The decoder of an encoder-decoder has another one than its encoder.
        """
        if self._fingerprint is None:
            with self._lock:
                weights = weights_fingerprint(self.model)
            if self._part == "decoder":
                # the same weights as the encoder's, and other states
                weights = hashlib.sha256(
                    f"{weights} decoder {self.stack.start}".encode()
                ).hexdigest()
            self._fingerprint = weights
        return self._fingerprint

    def describe(self) -> dict[str, Any]:
        """Everything about the model that determines the numbers it gives, as JSON types."""
        config = self.model.config
        tokenizer = self.tokenizer
        return {
            "name": self.name,
            "class": type(self.model).__name__,
            "model_type": config.model_type,
            "revision": None,
            "quantisation": quantisation(config),
            **{key: value for key, value in self._origin.items() if value is not None},
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "attn_implementation": getattr(config, "_attn_implementation", None),
            "n_blocks": self.n_blocks,
            "width": self.width,
            "vocab_size": self.vocab_size,
            "causal": self.causal,
            "part": self._part,
            "fingerprint": self.fingerprint(),
            "tokenizer": None if tokenizer is None else type(tokenizer).__name__,
            "tokenizer_fingerprint": self._tokenizer_fingerprint,
            "versions": library_versions(),
        }
