"""residual_mix/triton against float64: the cases of the contract, fused launches, strides, poison, refusals."""

import pytest
import torch

from day0.kernels.common.conformance import ALLOWED_RATIO, check, relative_l2
from day0.kernels.common.triton_launch import ContractError
from day0.kernels.registry import get_kind, resolve
from day0.kernels.residual_mix import triton_attention, triton_gated_streams, triton_mhc
from day0.kernels.residual_mix.triton_cases import ATTENTION, CASES, GATED, MHC

KIND = get_kind("residual_mix")
ON = [
    pytest.param("cpu", torch.float32, id="cpu-float32"),
    pytest.param("cuda", torch.bfloat16, id="cuda-bfloat16", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.float32, id="cuda-float32", marks=pytest.mark.gpu),
]
NAN = float("nan")


@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_case(case, device, dtype):
    findings = check("residual_mix", "triton", case, dtype=dtype, device=device)
    assert findings and [f for f in findings if not f.holds] == []


@pytest.mark.parametrize("scheme", [MHC, GATED, ATTENTION], ids=lambda s: s["scheme"])
def test_half_precision(scheme):
    case = next(c for c in CASES if c.attributes == scheme and c.method == "pre")
    assert [f for f in check("residual_mix", "triton", case, dtype=torch.float16) if not f.holds] == []


def problem(attributes, tokens, dtype, device, seed=0):
    """Attributes, weights and ports h, y, rounded to dtype: ({float64 on the CPU}, {in dtype on the device})."""
    generator = torch.Generator().manual_seed(seed)
    a = KIND.parse(attributes)
    drawn = {
        n: (torch.randn(w.shape, generator=generator) / (w.shape[-1] ** 0.5 if len(w.shape) > 1 else 1.0), w.dtype)
        for n, w in KIND.weights(a).items()
    }
    drawn["h"] = torch.randn(tokens, a.sources or a.streams, a.width, generator=generator), "activation"
    drawn["y"] = torch.randn(tokens, a.width, generator=generator), "activation"
    kept = {n: x.to(torch.float32 if d == "float32" else dtype) for n, (x, d) in drawn.items()}
    return a, {n: x.double() for n, x in kept.items()}, {n: x.to(device) for n, x in kept.items()}


def assert_close(got, plain, exact, dtype):
    bound = ALLOWED_RATIO * relative_l2(plain, exact) + torch.finfo(dtype).eps / 2
    assert relative_l2(got, exact) <= bound


def owned(values):
    return {n: x for n, x in values.items() if n not in ("h", "y")}


def launch(space, **changes):
    return dict(space.configs[0]) | changes


def mhc_fused(a, given, mix, chosen):
    """(h', x, gates, mixing) of the fused launches, into poisoned memory; the scratch is poisoned too."""
    h, y = given["h"], given["y"]
    out = (torch.full_like(y, NAN), torch.full_like(mix[0], NAN), torch.full_like(mix[1], NAN))
    h_new = torch.full_like(h, NAN)
    scratch = triton_mhc.workspace(h, launch=chosen)
    scratch.fill_(NAN)
    triton_mhc.read(
        h, given["fn"], given["base"], given["scale"], norm_eps=a.norm_eps, mix_eps=a.mix_eps,
        iterations=a.sinkhorn_iterations, out=out, scratch=scratch, written=(y, *mix), h_new=h_new, launch=chosen,
    )  # fmt: skip
    return h_new, *out


@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(launch(triton_mhc.FEW_SPACE, SPLITS=2), id="few"),
        pytest.param(launch(triton_mhc.MANY_SPACE, SPLITS=2), id="many"),
    ],
)
def test_mhc_writes_then_reads(chosen, device, dtype):
    a, exact, given = problem(MHC | {"width": 130}, 17, dtype, device)
    torch_pre, torch_post = (resolve("residual_mix", "torch", m) for m in ("pre", "post"))
    sides = []
    for values, cast in ((exact, torch.double), (dict((n, x.cpu()) for n, x in given.items()), torch.float)):
        # Post gets the same rounded gates everywhere; how well they are made is the cases' matter.
        mix = tuple(m.float().to(cast) for m in torch_pre(a, exact["h"], **owned(exact))[1])
        h_new = torch_post(a, values["h"], values["y"], mix)
        sides.append((h_new, mix, torch_pre(a, h_new, **owned(values))))
    mix = tuple(m.float().to(device) for m in sides[0][1])
    h_new, x, gates, mixing = mhc_fused(a, given, mix, chosen)
    written = resolve("residual_mix", "triton", "post")(a, given["h"], given["y"], mix)
    for got in (h_new, written):
        assert_close(got, sides[1][0], sides[0][0], dtype)
    for got, at in ((x, lambda s: s[2][0]), (gates, lambda s: s[2][1][0]), (mixing, lambda s: s[2][1][1])):
        assert_close(got, at(sides[1]), at(sides[0]), dtype)
    again = mhc_fused(a, given, mix, chosen)
    assert all(torch.equal(p, q) for p, q in zip((h_new, x, gates, mixing), again, strict=True))


@pytest.mark.parametrize(("device", "dtype"), ON)
def test_mhc_writes_in_place(device, dtype):
    a, _, given = problem(MHC, 6, dtype, device)
    mix = (torch.rand(6, 4, device=device), torch.rand(6, 4, 4, device=device))
    apart = torch.empty_like(given["h"])
    triton_mhc.write(given["h"], given["y"], *mix, out=apart)
    triton_mhc.write(given["h"], given["y"], *mix, out=given["h"])
    assert torch.equal(given["h"], apart)


@pytest.mark.parametrize(("device", "dtype"), ON)
def test_mixing_matrices_are_doubly_stochastic(device, dtype):
    a, _, given = problem(MHC | {"sinkhorn_iterations": 20}, 5, dtype, device)
    mixing = resolve("residual_mix", "triton", "pre")(a, given["h"], **owned(given))[1][1]
    for axis in (-1, -2):
        assert (mixing.sum(axis) - 1).abs().max() < 1e-4


@pytest.mark.parametrize(("device", "dtype"), ON)
@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("held", [1, 2, 8])
def test_attention_adds_then_reads_in_the_stream_buffer(opens, held, device, dtype):
    # The bound is the plain twin's own error: over few numbers chance decides which of the two is larger.
    tokens = 3 if device == "cpu" else 128
    a, exact, given = problem(ATTENTION | {"opens_block": opens}, tokens, dtype, device)
    buffer = torch.full((tokens, a.sources + 3, a.width), NAN, dtype=dtype, device=device)
    buffer[:, : a.sources] = given["h"]
    sources = a.sources + opens  # the slot of a source that opens a block holds what nobody wrote
    reads = KIND.parse(ATTENTION | {"sources": sources})
    torch_pre, torch_post = (resolve("residual_mix", "torch", m) for m in ("pre", "post"))
    want = torch_post(a, exact["h"], exact["y"], None)
    plain = torch_post(a, given["h"].cpu(), given["y"].cpu(), None)
    out = torch.full_like(given["y"], NAN), torch.full((tokens, sources), NAN, device=device)
    triton_attention.read(
        buffer[:, :sources], given["query"], given["key_weight"], norm_eps=a.norm_eps, scale=a.scale, normed=False,
        out=out, y=given["y"], opens=opens, launch={"BL": held, "warps": 4},
    )  # fmt: skip
    assert_close(buffer[:, :sources], plain, want, dtype)
    assert buffer[:, sources:].isnan().all()
    cpu = dict((n, x.cpu()) for n, x in owned(given).items())
    for got, p, e in zip(
        out, torch_pre(reads, plain, **cpu), torch_pre(reads, want, **owned(exact)), strict=True
    ):  # fmt: skip
        assert_close(got, p, e, dtype)


@pytest.mark.parametrize(("device", "dtype"), ON)
def test_gated_streams_in_slices_are_repeatable(device, dtype):
    tokens = 10
    a, _, given = problem(GATED, tokens, dtype, device)
    apart = launch(triton_gated_streams.FEW_SPACE, PARTS=2)
    sliced = launch(triton_gated_streams.FEW_SPACE, PARTS=2, SLICE=8)
    results = []
    for chosen in (apart, sliced, sliced) if device == "cuda" else (apart, sliced):
        out = torch.full_like(given["y"], NAN), torch.full((tokens, 4), NAN, dtype=dtype, device=device)
        scratch = triton_gated_streams.workspace(given["h"], a.rank, launch=chosen)
        for part in scratch:
            part.fill_(NAN)
        triton_gated_streams.read(
            given["h"], given["norm"], given["down"], given["up"], given["inject"],
            norm_eps=a.norm_eps, out=out, scratch=scratch, launch=chosen,
        )  # fmt: skip
        results.append(out)
    assert all(torch.equal(p, q) for p, q in zip(results[1], results[-1], strict=True))
    for whole, sliced_too in zip(*results[:2], strict=True):
        torch.testing.assert_close(whole, sliced_too)


@pytest.mark.parametrize("scheme", [MHC, GATED, ATTENTION], ids=lambda s: s["scheme"])
def test_a_token_does_not_depend_on_its_batch(scheme):
    a, _, given = problem(scheme, 19, torch.float32, "cpu")
    pre = resolve("residual_mix", "triton", "pre")
    given["h"][3] = NAN
    given["h"][4, 0, 0] = float("inf")
    whole = pre(a, given["h"], **owned(given))[0]
    # The second tile's tokens: the interpreter's products depend on a row's place in its tile.
    alone = pre(a, given["h"][16:], **owned(given))[0]
    assert torch.equal(whole[16:], alone) and whole[3].isnan().all()
    assert whole[torch.arange(19) > 4].isfinite().all()


@pytest.mark.parametrize("scheme", [MHC, GATED, ATTENTION], ids=lambda s: s["scheme"])
def test_wider_rows_and_no_tokens(scheme):
    a, _, given = problem(scheme, 4, torch.float32, "cpu")
    pre = resolve("residual_mix", "triton", "pre")
    want = pre(a, given["h"], **owned(given))[0]
    wide = torch.full((4, 9, a.width + 24), NAN)
    view = wide[:, 2 : 2 + given["h"].shape[1], 8 : 8 + a.width]
    view.copy_(given["h"])
    assert torch.equal(pre(a, view, **owned(given))[0], want)
    assert pre(a, given["h"][:0], **owned(given))[0].shape == (0, a.width)


def test_refusals_come_before_the_launch():
    a, _, given = problem(MHC, 4, torch.float32, "cpu")
    pre, post = (resolve("residual_mix", "triton", m) for m in ("pre", "post"))
    with pytest.raises(ContractError, match="last axis contiguous"):
        pre(a, given["h"].mT.contiguous().mT, **owned(given))
    with pytest.raises(ContractError, match="h in"):
        pre(a, given["h"].double(), **owned(given))
    with pytest.raises(ContractError, match="1 to 8 streams, not 9"):
        post(a, torch.zeros(4, 9, 40), given["y"], (torch.zeros(4, 9), torch.zeros(4, 9, 9)))
    with pytest.raises(ContractError, match="a stream of 5 sources, not 4"):
        resolve("residual_mix", "triton", "pre")(KIND.parse(ATTENTION), given["h"], query=given["y"][0])
    with pytest.raises(ContractError, match="written gates"):
        post(a, given["h"], given["y"], (torch.zeros(4, 3), torch.zeros(4, 4, 4)))
