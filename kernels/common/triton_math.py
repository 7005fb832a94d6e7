# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Single instructions of a GPU as functions; where there are none (the interpreter), what they stand for."""

import triton
import triton.language as tl

from day0.kernels.common import triton_launch

PTX = tl.constexpr(triton_launch.PTX)


@triton.jit
def exp2_fast(x):
    """2^x without the steps that keep denormal results: zero there."""
    if PTX:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.exp2(x)


@triton.jit
def log2_fast(x):
    """log2 of a normal x > 0, within 2^-22 of it or of 1."""
    if PTX:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.log2(x)


@triton.jit
def reciprocal_fast(x):
    """1 / x to the last place or so; zero where the result would be denormal."""
    if PTX:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return 1.0 / x


@triton.jit
def rounded(x, KIND: tl.constexpr):
    """float32 x in KIND; to bfloat16 two at a time, which by themselves take a slow unit one by one."""
    if PTX and KIND == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], tl.bfloat16, is_pure=True, pack=2
        )
    else:
        return x.to(KIND)


@triton.jit
def pairs_of_float8(pairs):
    """(even, odd) of int16 `pairs` of e4m3 numbers, as float16, which holds them all."""
    if PTX:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 t; .reg .b16 low, high;
            prmt.b32 t, $2, 0, 0x4420; mov.b32 {low, high}, t; cvt.rn.f16x2.e4m3x2 $0, low;
            prmt.b32 t, $2, 0, 0x4431; mov.b32 {low, high}, t; cvt.rn.f16x2.e4m3x2 $1, low;
            }""",
            "=r,=r,r",
            [pairs],
            (tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        even = (pairs & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        odd = ((pairs >> 8) & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        return even, odd


@triton.jit
def pairs_of_int8(pairs):
    """(even, odd) of int16 `pairs` of int8 numbers, as float16: v is put behind 1024 (0x6400) as v + 128."""
    if PTX:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 x, t, bytes, offset;
            xor.b32 x, $2, 0x80808080; mov.b32 bytes, 0x64646464; mov.b32 offset, 0x64806480;
            prmt.b32 t, x, bytes, 0x4240; sub.rn.f16x2 $0, t, offset;
            prmt.b32 t, x, bytes, 0x4341; sub.rn.f16x2 $1, t, offset;
            }""",
            "=r,=r,r",
            [pairs],
            (tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        even = (((pairs & 0xFF) ^ 0x80) | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - 1152.0
        odd = ((((pairs >> 8) & 0xFF) ^ 0x80) | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - 1152.0
        return even.to(tl.float16), odd.to(tl.float16)


@triton.jit
def prefetch(pointers, mask):
    """Asks for the lines of these addresses, for loads that come one after the other and would each wait for memory."""
    if PTX:
        tl.inline_asm_elementwise(
            "{ .reg .pred wanted; setp.ne.s32 wanted, $2, 0; @wanted prefetch.global.L1 [$1]; mov.b32 $0, 0; }",
            "=r,l,r",
            [pointers.to(tl.int64), mask.to(tl.int32)],
            tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def prefetch_to_l2(pointers, mask):
    """Asks for the lines of these addresses as far as L2."""
    if PTX:
        tl.inline_asm_elementwise(
            "{ .reg .pred wanted; setp.ne.s32 wanted, $2, 0; @wanted prefetch.global.L2 [$1]; mov.b32 $0, 0; }",
            "=r,l,r",
            [pointers.to(tl.int64), mask.to(tl.int32)],
            tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def await_launch_before():
    """Until the launch before this one is complete, where this one was let start early; else nothing."""
    if PTX:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_launch_start():
    """The next launch, where it is made to, may start as soon as all programs of this one have come here or ended."""
    if PTX:
        tl.extra.cuda.gdc_launch_dependents()
