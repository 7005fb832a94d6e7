"""day0 kernels test and bench: the kernels on this machine's device, beside the reference, the floor and the peers."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from day0.cli.common import command, gate
from day0.cli.output import Output
from day0.errors import Day0Error

_HELP = "Kinds of operators, or other kernels (default: all)"
Kinds = Annotated[list[str] | None, typer.Argument(metavar="[KIND]...", help=_HELP)]
Match = Annotated[str, typer.Option(metavar="TEXT", help="Only those with TEXT in their name")]


@command
def test(
    out: Output,
    kinds: Kinds = None,
    match: Match = "",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32")] = "bfloat16",
    seed: Annotated[int, typer.Option(help="Seed of the random inputs")] = 0,
) -> None:
    """Hold every fused kernel to its float64 reference, on this machine's GPU

    Without a GPU, TRITON_INTERPRET=1 runs the kernels interpreted (float32 and float16 only: slow).

    Example: day0 kernels test recurrence --json
    """
    import torch

    from day0.artifacts.alignment import json_number
    from day0.kernels.common.conformance import findings
    from day0.kernels.common.triton_launch import INTERPRETED
    from day0.kernels.registry import declared

    if dtype not in ("bfloat16", "float16", "float32"):
        raise typer.BadParameter(f"--dtype {dtype}: bfloat16, float16 or float32")
    device = "cpu" if INTERPRETED else "cuda"
    if not INTERPRETED:
        _need_gpu()
    elif dtype == "bfloat16":
        raise Day0Error("interpreted kernels cannot multiply bfloat16 matrices", hint="add --dtype float32")
    rows: list[dict[str, Any]] = []
    for kind in _named(kinds):
        for case in declared(kind, "triton_cases", "CASES"):
            if match not in case.name:
                continue
            with out.progress(f"{kind}: {case.name}"):
                found = findings(kind, case, dtype=getattr(torch, dtype), device=device, seed=seed)
            worst = max(found, key=lambda f: (not f.holds, f.error / f.bound if f.bound else f.error))
            rows.append(
                {
                    "kind": kind,
                    "case": case.name,
                    "worst": f"{worst.what}, step {worst.step}",
                    "error": json_number(worst.error),
                    "bound": json_number(worst.bound),
                    "verdict": "holds" if all(f.holds for f in found) else "does not hold",
                }
            )
    _need_any(rows, match)
    verdict = "holds" if all(row["verdict"] == "holds" for row in rows) else "does not hold"
    out.table(rows, title=f"fused kernels beside float64, {dtype}")
    out.document({"verdict": verdict, "dtype": dtype, "seed": seed, "cases": rows})
    gate(verdict)


@command
def bench(
    out: Output,
    kinds: Kinds = None,
    match: Match = "",
    peers: Annotated[bool, typer.Option(help="Time other implementations too (some compile for minutes)")] = True,
) -> None:
    """Time the fused kernels beside their floor and their peers on this machine's GPU, in one run

    A time is the median over replays of a CUDA graph that goes through more inputs than the cache holds; the floor is
    the larger of bytes over the measured bandwidth and operations over the measured rate. Ends with 1 where a result's
    error is over its bound: at most twice the plain reference's own and one rounding; of counts of wrong results, 0.

    Example: day0 kernels bench recurrence --json
    """
    from day0.artifacts.alignment import json_number
    from day0.kernels.common.triton_bench import measure_ceilings, run_bench
    from day0.kernels.registry import declared

    _need_gpu()
    with out.progress("measuring the device's ceilings"):
        ceilings = measure_ceilings()
    rows: list[dict[str, Any]] = []
    over: list[str] = []
    for kind in _named(kinds):
        for one in declared(kind, "triton_bench", "BENCHES"):
            if match not in f"{one.operator} {one.shape}":
                continue
            with out.progress(f"{one.operator}, {one.shape}"):
                row = run_bench(one, ceilings, with_peers=peers)
            found = row.deviation
            if not found.holds:
                over.append(f"{row.operator}, {row.shape} ({found.error:.3g}, at most {found.bound:.3g})")
            rows.append(
                {
                    "operator": row.operator,
                    "shape": row.shape,
                    "us": round(row.us, 2),
                    "floor_us": round(row.floor_us, 2),
                    "of_floor": round(row.of_floor, 3),
                    "peer": row.peer,
                    "peer_us": None if row.peer_us is None else round(row.peer_us, 2),
                    "error": json_number(found.error),
                    "bound": json_number(found.bound),
                    "verdict": "holds" if found.holds else "does not hold",
                    "goal": row.goal,
                    "peers": dict(row.others),
                }
            )
    _need_any(rows, match)
    facts = {**asdict(ceilings), **_machine()}
    out.table(rows, columns=[k for k in rows[0] if k != "peers"])
    verdict = "does not hold" if over else "holds"
    out.document({**facts, "verdict": verdict, "rows": rows})
    if over:
        raise _Over(f"over the bound of its error: {'; '.join(over)}")


class _Over(Day0Error):
    """A figure of a kernel whose results are wrong is no figure."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="its times stand for nothing: run `day0 kernels test` on its kind")


def _named(kinds: list[str] | None) -> list[str]:
    from day0.kernels.registry import kernel_folders

    unknown = sorted(set(kinds or ()) - set(kernel_folders()))
    if unknown:
        raise Day0Error(f"no kernels of {', '.join(unknown)}", hint=f"known: {', '.join(kernel_folders())}")
    return list(kinds or kernel_folders())


def _need_any(rows: list[dict[str, Any]], match: str) -> None:
    if not rows:
        raise Day0Error(f"nothing to run has {match!r} in its name", hint="leave --match out to see all names")


def _need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise Day0Error("this machine has no CUDA device", hint="run it on a machine with a GPU")


def _machine() -> dict[str, str]:
    import torch

    from day0.artifacts.provenance import package_versions

    return {"card": torch.cuda.get_device_name(), **package_versions()}
