"""Runs pytest in a forked process that starts warm: torch and transformers are imported, this project is not."""

import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

PROJECT = ("day0", "tests.kernels", "tests.builders", "tests.conftest")
# What takes time in every process and that a pass or a failure does not hang on.
WITHOUT = [f for n in ("cacheprovider", "logging", "unraisableexception", "threadexception") for f in ("-p", f"no:{n}")]
# Beyond what the process has when it starts; a mutant that asks for more fails like any other.
MEMORY_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Job:
    """`prepare` runs in the new process before pytest does; limits in seconds of processor and of wall time."""

    key: object
    tests: Sequence[str]
    prepare: Callable[[], None]
    cpu_s: float
    wall_s: float


@dataclass(frozen=True)
class Outcome:
    """`exit_code` is pytest's (0: all passed, 1: some failed, 2: collection failed); None when a limit ended it."""

    key: object
    exit_code: int | None
    cpu_s: float


def run(jobs: Iterable[Job], workers: int) -> Iterator[Outcome]:
    """The outcome of every job as it ends, with so many processes at a time."""
    waiting = iter(jobs)
    # What is imported so far lives as long as the children do: their collections need not look through it.
    gc.freeze()
    running: dict[int, tuple[Job, float]] = {}
    try:
        while True:
            while len(running) < workers and (job := next(waiting, None)) is not None:
                running[_start(job)] = job, time.monotonic()
            if not running:
                return
            time.sleep(0.01)
            for pid, (job, started) in list(running.items()):
                if time.monotonic() - started > job.wall_s:
                    os.kill(pid, signal.SIGKILL)
                ended, status, usage = os.wait4(pid, os.WNOHANG)
                if ended:
                    del running[pid]
                    yield _outcome(job, status, usage.ru_utime + usage.ru_stime)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _outcome(job: Job, status: int, cpu_s: float) -> Outcome:
    if os.WIFEXITED(status):
        return Outcome(job.key, os.WEXITSTATUS(status), cpu_s)
    if os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU):
        return Outcome(job.key, None, cpu_s)
    return Outcome(job.key, 1, cpu_s)


def _start(job: Job) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        _silence()
        _limit(job.cpu_s)
        for name in [n for n in sys.modules if n in PROJECT or n.startswith(tuple(f"{p}." for p in PROJECT))]:
            del sys.modules[name]
        job.prepare()
        import pytest

        options = ["-x", "-q", "--tb=no", "-m", "not verify and not gpu", "--disable-plugin-autoload"]
        code = int(pytest.main([*options, *WITHOUT, *job.tests]))
    finally:
        # The parent's exit handlers are not this process's to run.
        os._exit(code)


def _silence() -> None:
    sink = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(sink, descriptor)


def _limit(cpu_s: float) -> None:
    limit = int(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES, mapped + MEMORY_BYTES))
