"""Attributes and weights of the kind `embedding`."""

from day0.kernels.interface.attributes import Attributes, Size
from day0.kernels.interface.kind import Shown, Weight

WEIGHTS = {"weight": Shown("[vocab_size, width]")}


class EmbeddingAttributes(Attributes):
    """A table of `vocab_size` rows of `width` channels, whose rows are multiplied by `scale`."""

    vocab_size: Size
    width: Size
    scale: float = 1.0


def weights(a: EmbeddingAttributes) -> dict[str, Weight]:
    return {"weight": Weight((a.vocab_size, a.width))}
