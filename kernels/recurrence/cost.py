"""Cost of a recurrence: the algebra of the token step, and the state of every sequence once a step."""

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.recurrence.schema import RecurrenceAttributes, state, weights

WEIGHT_BYTES = 4


def cost(a: RecurrenceAttributes, work: Work) -> Cost:
    """Per state element and token: a multiply-add to write and one to read, one more for the delta rule's read, and
    the decay's multiply. A fresh sequence reads no state. Gates and norms, linear in the heads' width, are left out.
    """
    elements = a.value_heads * a.key_dim * a.value_dim
    per_element = 4 + 2 * a.delta_rule + (a.decay != "none")
    values = a.value_heads * a.value_dim
    ports = 2 * a.key_heads * a.key_dim + values + a.decay_width + (a.value_heads if a.beta != "none" else 0)
    owned = sum(w.shape[0] for w in weights(a).values()) * WEIGHT_BYTES
    states = work.sequences * sum(c.entry_bytes(work.activation_bytes) for c in state(a))
    return Cost(
        flops=work.tokens * elements * per_element,
        bytes_read=work.tokens * ports * work.activation_bytes + owned + (states if work.context > 0 else 0),
        bytes_written=work.tokens * values * work.activation_bytes + states,
    )
