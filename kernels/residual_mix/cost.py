"""Cost of a residual scheme: elementwise work over the stream, which must cross memory around the branch."""

from day0.kernels.interface.kind import Cost, Work
from day0.kernels.residual_mix.schema import ResidualMixAttributes

FLOAT32_BYTES = 4


def cost(a: ResidualMixAttributes, work: Work) -> Cost:
    """Both methods of the operator together: pre and post, or expand and collapse."""
    if a.scheme == "add":
        return _step(a, work, flops=a.width * (1 + (a.multiplier != 1.0)), vectors=(2, 1))
    count = a.sources if a.scheme == "attention" else a.streams
    if a.role == "boundary":
        owned, flops = _reading(a, count)
        copies = 1 if a.scheme == "attention" else count
        return _step(a, work, flops=flops, vectors=(1 + count, copies + 1), owned=owned)
    owned, flops = _reading(a, count)
    if a.scheme == "attention":
        added = 0 if a.opens_block else 1
        return _step(a, work, flops=flops + a.width * added, vectors=(count + 1 + added, 2), owned=owned)
    mixes = count * (1 + count) if a.scheme == "mhc" else count
    mix_bytes = mixes * (FLOAT32_BYTES if a.scheme == "mhc" else work.activation_bytes)
    written = 2 * a.width * mixes
    return _step(
        a, work, flops=flops + written, vectors=(2 * count + 1, 1 + count), owned=owned, mix_bytes=mix_bytes
    ) + Cost(0.0, _float32_bytes(a), 0.0)


def _reading(a: ResidualMixAttributes, count: int) -> tuple[int, int]:
    """(weights in the activation dtype, operations per token) of making one vector out of `count`."""
    channels = count * a.width
    if a.scheme == "mhc":
        if a.role == "boundary":
            return 0, channels
        mixes = (2 + count) * count
        # norm: square, add, multiply; product; Sinkhorn: add and divide per element, twice; weighted sum
        sinkhorn = 4 * count * count * a.sinkhorn_iterations
        return mixes * channels, 3 * channels + 2 * mixes * channels + sinkhorn + 2 * channels
    if a.scheme == "gated_streams":
        products = 2 * a.rank * channels + (count * channels if a.role == "branch" else 0)
        # norm: square, add, multiply, weight; sigmoid as four; gate times value, mean
        return channels + products, 4 * channels + 2 * products + 6 * channels
    # norm: square, add, multiply; score: multiply, add; mixture: multiply, add
    return a.width * (1 + a.weighted_keys), channels * (7 + a.weighted_keys)


def _float32_bytes(a: ResidualMixAttributes) -> int:
    """base and scale of an mhc branch, float32 whatever the package's dtype."""
    return ((2 + a.streams) * a.streams + 3) * FLOAT32_BYTES if a.scheme == "mhc" else 0


def _step(
    a: ResidualMixAttributes,
    work: Work,
    *,
    flops: int,
    vectors: tuple[int, int],
    owned: int = 0,
    mix_bytes: int = 0,
) -> Cost:
    """`vectors`: how many vectors of `width` each token reads and writes."""
    read, written = (v * a.width * work.activation_bytes + mix_bytes for v in vectors)
    return Cost(
        flops=float(work.tokens * flops),
        bytes_read=float(work.tokens * read + owned * work.weight_bytes),
        bytes_written=float(work.tokens * written),
    )
