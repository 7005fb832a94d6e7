"""What a user may choose, stage by stage."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Trust = Literal["sandboxed", "unsandboxed"]
DType = Literal["float64", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class RunOptions:
    """What a user may choose, stage by stage. Each stage records its own part as flags.

    `recipe`: a name or a file, instead of the one that matches the config. `trust`: how the repo's own code may run.
    `require`: what decompose holds to: "proved" refuses operators that nothing but a recipe or a name vouches for.
    `layers`: only the first layers. `dummy_weights`: random ones. `force`: overwrite edits of the package.
    `greedy_tokens`, `texts`, `seed`: length of align's greedy continuations, further prompts, and the random ones.
    `golden`: a recording to align with instead of the reference. `stream`: align one layer at a time.
    `matrix`: which cells of the state matrix align runs, too.
    """

    recipe: str | None = None
    trust: Trust | None = None
    require: Literal["proved"] | None = None
    trust_recipe: bool = False
    device: str = "cpu"
    dtype: DType | None = None
    layers: int | None = None
    dummy_weights: bool = False
    force: bool = False
    revision: str | None = None
    greedy_tokens: int = 64
    texts: tuple[str, ...] = ()
    seed: int = 0
    golden: Path | None = None
    stream: bool = False
    matrix: Literal["few", "all"] | None = None
