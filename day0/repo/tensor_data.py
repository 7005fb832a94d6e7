"""Turn the bytes of a safetensors tensor into a torch tensor, and check it for NaN and infinity."""

from typing import TYPE_CHECKING

from day0.errors import Day0Error
from day0.repo.headers import TensorHeader

if TYPE_CHECKING:
    import torch

_TORCH_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "F4": "float4_e2m1fn_x2",
}
_CHECK_ELEMENTS = 16 * 1024 * 1024  # bounds the copies made while checking


def decode_tensor(header: TensorHeader, data: bytearray) -> "torch.Tensor":
    """Tensor of `header` over the memory of `data` (no copy).

    F4 packs two elements in a byte, so its last dimension is half the header's, as torch stores it.
    Raises Day0Error for a dtype that torch has no equal of (F6).
    """
    import torch

    dtype = getattr(torch, _TORCH_DTYPES.get(header.dtype, ""), None)
    if dtype is None:
        raise Day0Error(
            f"{header.file}: tensor {header.name!r} has dtype {header.dtype}, which torch {torch.__version__} lacks",
            hint="convert the checkpoint to another dtype, or install a torch that knows this one",
        )
    shape = list(header.shape)
    if header.dtype == "F4":
        if not shape or shape[-1] % 2:
            raise Day0Error(
                f"{header.file}: tensor {header.name!r} is F4 with an odd last dimension",
                hint="convert the checkpoint so that rows are whole bytes",
            )
        shape[-1] //= 2
    if not data:
        return torch.empty(shape, dtype=dtype)
    if dtype == torch.bool:  # any byte but 0 is true; torch keeps other bytes than 0 and 1 as they are
        return (torch.frombuffer(data, dtype=torch.uint8) != 0).reshape(shape)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def is_finite(tensor: "torch.Tensor") -> bool:
    """Whether no element is NaN or infinite. Integers and F4 (which has neither) are always finite."""
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.dtype == torch.float4_e2m1fn_x2:
        return True
    one_byte = tensor.element_size() == 1
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), _CHECK_ELEMENTS):
        chunk = flat[start : start + _CHECK_ELEMENTS]
        if not torch.isfinite(chunk.float() if one_byte else chunk).all():
            return False
    return True
