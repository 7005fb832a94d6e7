"""compute-sanitizer's memcheck over an edge case of every kernel: `python -m tests.kernels.sanitize` on a GPU.

Each case runs in a process of its own, with every tensor in memory of its own, so that a read or write beside one is
seen. Ends with 1 where one is found, with 2 where a case could not run.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed

CASES = {
    "attention": "gqa edges",
    "causal_conv": "short chunks",
    "index_select": "softmax pools, tail kept and completed",
    "linear": "columns and rows that fill no tile",
    "mlp": "relu, one channel",
    "moe": "few tokens, sigmoid with bias and scale",
    "norm": "rms of one channel, no weight",
    "quantize": "edges",
    "recurrence": "gdn grouped values",
    "residual_mix": "mhc reads 3 streams, one Sinkhorn step, no eps",
    "rotary": "interleaved read, half written",
    "sample": "a vocabulary over two blocks",
    "sparse_attention": "gqa edges",
}
_FOUND = 99
_SECONDS = 400
_AT_ONCE = 7


def check(kind: str) -> tuple[str, int, str]:
    """(kind, exit code, the last lines that it printed)."""
    run = "from day0.cli.main import main; main()"
    command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", str(_FOUND), sys.executable, "-c", run]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            [*command, "kernels", "test", kind, "--match", CASES[kind]],
            capture_output=True, text=True, timeout=_SECONDS, env=environment, check=False,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, FileNotFoundError) as error:
        return kind, -1, str(error)
    return kind, done.returncode, "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])


def main(kinds: list[str]) -> int:
    codes = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done in as_completed([pool.submit(check, kind) for kind in kinds or sorted(CASES)]):
            kind, code, said = done.result()
            codes.append(code)
            verdict = {0: "no errors", _FOUND: "MEMORY ERRORS"}.get(code, f"did not run ({code})")
            print(f"{kind}: {verdict}", flush=True)
            if code:
                print(said, flush=True)
    return 1 if _FOUND in codes else 2 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
