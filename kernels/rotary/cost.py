"""Cost of a rotation: one pass over its input; the tables are made on the way."""

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.rotary.schema import RotaryAttributes


def cost(a: RotaryAttributes, work: Work) -> Cost:
    """Counts one head per token. A pair costs 4 products and 2 sums; channels outside the slice are moved too."""
    moved = work.tokens * a.head_dim * work.activation_bytes
    return Cost(flops=work.tokens * 3.0 * a.rotary_dim, bytes_read=moved, bytes_written=moved)
