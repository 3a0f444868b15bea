"""Documents in, tokens, and the positions that are sampled."""

from actstore.corpus.documents import Corpus, Document, Survey
from actstore.corpus.planning import PlanBlock, plan
from actstore.corpus.reading import read_corpus
from actstore.corpus.sampling import Sampling
from actstore.corpus.tokens import special_ids, token_strings

__all__ = [
    "Corpus",
    "Document",
    "PlanBlock",
    "Sampling",
    "Survey",
    "plan",
    "read_corpus",
    "special_ids",
    "token_strings",
]
