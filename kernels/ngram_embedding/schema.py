"""Attributes, weights and state of the kind `ngram_embedding`."""

import math
from typing import Any

from pydantic import Field, model_validator

from day0.artifacts.layout import Component
from day0.kernels.interface.attributes import Attributes, Size
from day0.kernels.interface.kind import Shown, Weight
from day0.kernels.ngram_embedding.hashing import table_sizes

WEIGHTS = {
    "table": Shown("[rows, embed_dim // heads]", "", "all heads' tables, one after the other, and the padding"),
    "key": Shown("[streams * width, embed_dim]"),
    "value": Shown("[width, embed_dim]"),
    "key_norm": Shown("[streams * width]"),
    "query_norm": Shown("[streams * width]"),
    "conv_norm": Shown("[streams * width]"),
    "conv": Shown("[streams * width, conv_kernel]"),
}
STATE = {
    "context": Shown("[ngram_size - 1]", "", "the last token ids, oldest first", "int64", "per_sequence"),
    "window": Shown("[streams * width, window]", "", "the last convolution inputs, oldest first", role="per_sequence"),
}


class NgramEmbeddingAttributes(Attributes):
    """Adds to every stream what a hashed table knows about the last 2 .. `ngram_size` tokens.

    Each n-gram length has `heads_per_ngram` heads; a head hashes the n-gram into a table of its own, of prime size. All
    heads' tables stand one after the other in the weight `table`.
    """

    width: Size = Field(description="channels of one stream")
    streams: Size = Field(description="streams that the result is added to")
    embed_dim: Size = Field(description="channels of all heads together")
    vocab_size: Size = Field(description="token ids; bounds the hash multipliers")
    ngram_size: int
    heads_per_ngram: int
    table_base: Size = Field(description="the smallest table has the first prime >= this many rows")
    table_divisor: Size = Field(description="the rows of all tables together are padded to a multiple of this")
    seed: int = Field(description="of the hash multipliers")
    layer_index: int = Field(ge=0, description="counts the layers that have such an embedding, from 0")
    eos_id: int = Field(description="n-grams do not reach back over this token; it stands before the beginning too")
    norm_eps: float = Field(ge=0.0, description="eps of the three norms")
    conv_kernel: Size = Field(description="tokens that the convolution of the result goes over")
    conv_dilation: Size = Field(description="how far apart those tokens are")

    @model_validator(mode="after")
    def _heads_divide_the_embedding(self) -> "NgramEmbeddingAttributes":
        if self.ngram_size < 2 or self.heads_per_ngram < 1:
            raise ValueError(f"{self.heads_per_ngram} heads of {self.ngram_size}-grams: need n >= 2 and a head")
        if self.embed_dim % self.heads:
            raise ValueError(f"embed_dim {self.embed_dim} does not divide into {self.heads} heads")
        return self

    @property
    def heads(self) -> int:
        """Heads of all n-gram lengths."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def channels(self) -> int:
        """Channels of all streams."""
        return self.streams * self.width

    @property
    def window(self) -> int:
        """How many earlier convolution inputs the output depends on."""
        return (self.conv_kernel - 1) * self.conv_dilation

    @property
    def rows(self) -> int:
        """Rows of the table, padding included."""
        total = sum(table_sizes(self.table_base, self.heads, self.layer_index))
        return math.ceil(total / self.table_divisor) * self.table_divisor

    @classmethod
    def alternatives(cls) -> dict[str, tuple[Any, ...]]:
        return {"norm_eps": (1e-5, 1e-6, 1e-8), "conv_dilation": (1, 2, 3)}


def weights(a: NgramEmbeddingAttributes) -> dict[str, Weight]:
    return {
        "table": Weight((a.rows, a.embed_dim // a.heads)),
        "key": Weight((a.channels, a.embed_dim)),
        "value": Weight((a.width, a.embed_dim)),
        "key_norm": Weight((a.channels,)),
        "query_norm": Weight((a.channels,)),
        "conv_norm": Weight((a.channels,)),
        "conv": Weight((a.channels, a.conv_kernel)),
    }


def state(a: NgramEmbeddingAttributes) -> tuple[Component, ...]:
    """The last token ids (eos_id before the beginning) and convolution inputs (zero before it), oldest first."""
    return (
        Component(name="context", role="per_sequence", shape=(a.ngram_size - 1,), dtype="int64", rollback="restore"),
        Component(name="window", role="per_sequence", shape=(a.channels, a.window), rollback="restore"),
    )
