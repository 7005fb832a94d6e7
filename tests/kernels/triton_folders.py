"""Which folders of kernels/ have Triton kernels, and which of those count programs as they arrive."""

from day0.kernels.registry import get_kind, kernel_folders, kind_names
from tests.house.source_tree import KERNELS


def with_triton_kernels():
    """The kinds that declare an implementation in Triton, and the folders of kernels that are no kind."""
    declare = {k for k in kind_names() if "triton" in [i.name for i in get_kind(k).implementations]}
    return declare | set(kernel_folders()) - set(kind_names())


def with_tickets():
    """Folders with an atomic operation: what its programs do may depend on which of them comes last."""
    return {path.parent.name for path in KERNELS.glob("*/triton_*.py") if "tl.atomic_" in path.read_text()}
