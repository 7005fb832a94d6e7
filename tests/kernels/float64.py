"""Lets modeling code that asks for float32 compute in float64, so that formulas can be compared exactly."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Float64Meaning(TorchFunctionMode):
    """Inside `with Float64Meaning():`, every `.float()` and every float32 dtype argument of a torch call is float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        args = [torch.float64 if v is torch.float32 else v for v in args]
        return func(*args, **{k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()})
