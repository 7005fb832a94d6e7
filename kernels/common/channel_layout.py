"""How the channels of a rotated head are paired; apart from the rotation, so that a schema needs no torch."""

from typing import Literal

Layout = Literal["half", "interleaved", "interleaved_to_half"]
