"""Write a small random repo: python tests/builders/cli.py FAMILY OUT_DIR [--seed S] [--layers N] [--dtype DTYPE]."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.builders.families import FAMILIES  # noqa: E402
from tests.builders.tiny import write_repo  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a small random repo of a model family.")
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args()
    write_repo(args.out_dir, args.family, args.seed, args.dtype, args.layers)
    print(args.out_dir)


if __name__ == "__main__":
    main()
