"""An inventory, the kernels' contracts and a device give a plan."""

from day0.mapping.device import Device, load_device
from day0.mapping.options import MapOptions
from day0.mapping.stage import run

__all__ = ["Device", "MapOptions", "load_device", "run"]
