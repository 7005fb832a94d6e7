"""One memory, divided once: what a model's weights and steps take, and how many slots and pages that leaves."""

import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import torch

from day0.artifacts.layout import PAGE_TOKENS, Layout
from day0.engine.memory.store import NULL_PAGE, NULL_SLOT, pages_of
from day0.engine.runner import Runner
from day0.errors import Day0Error
from day0.kernels.interface.memory import component_dtype
from day0.kernels.interface.package import Package

_MIB = 2**20


@dataclass(frozen=True)
class Demand:
    """What a memory is asked to hold: `tokens` of all requests together and `checkpoints` are cut where there is no
    room, a request of `longest` tokens and `running` sequences are not. `drafts`: states are copied to verify them."""

    running: int
    tokens: int
    checkpoints: int
    longest: int
    drafts: bool = False


@dataclass(frozen=True)
class Budget:
    """Bytes of a device and what is made of them. `pages`, `running`, `scratch` and `checkpoints` are those that are
    dealt out; one page and one slot more are there for padding."""

    demand: Demand
    device_bytes: int
    weights: int
    workspace: int
    graphs: int
    page_bytes: int
    slot_bytes: int
    pages: int
    running: int
    scratch: int
    checkpoints: int
    stateful: bool

    @property
    def store_pages(self) -> int:
        return self.pages + NULL_PAGE + 1

    @property
    def store_slots(self) -> int:
        return self.running + self.scratch + self.checkpoints + NULL_SLOT + 1

    @property
    def used(self) -> int:
        fixed = self.weights + self.workspace + self.graphs
        return fixed + self.store_slots * self.slot_bytes + self.store_pages * self.page_bytes

    def lines(self) -> list[str]:
        """The formula in numbers, a term a line."""
        slots = f"1 + {self.running} running + {self.scratch} scratch + {self.checkpoints} checkpoints"
        said = [
            f"memory: {_mib(self.device_bytes)} = weights {_mib(self.weights)} + workspace {_mib(self.workspace)}"
            f" + graphs {_mib(self.graphs)} + slots + pages + {_mib(self.device_bytes - self.used)} left",
            f"state slots: {slots} = {self.store_slots} x {self.slot_bytes} bytes"
            f" = {_mib(self.store_slots * self.slot_bytes)}",
            f"token pages: 1 + {self.pages} = {self.store_pages} x {self.page_bytes} bytes"
            f" = {_mib(self.store_pages * self.page_bytes)}, for {self.pages * PAGE_TOKENS} tokens",
        ]
        if self.pages < pages_of(self.demand.tokens) or self.checkpoints < self.demand.checkpoints:
            said.append(f"asked for were {self.demand.tokens} tokens and {self.demand.checkpoints} checkpoints")
        return said

    def warnings(self) -> list[str]:
        """Why no prefix will be found in memory again, or hardly ever."""
        longest = min(self.demand.longest, self.pages * PAGE_TOKENS)
        if longest <= PAGE_TOKENS:
            return [
                f"no prefix will be reused: prefixes are kept each {PAGE_TOKENS} tokens, and the longest request has"
                f" {longest}"
            ]
        if self.stateful and not self.checkpoints:
            return [
                f"no slot is for checkpoints, without which this model reuses no prefix: one is only found while fewer"
                f" than {self.running} sequences run"
            ]
        return []


def divide(
    layout: Layout,
    demand: Demand,
    *,
    dtype: torch.dtype,
    device_bytes: int,
    weights: int,
    workspace: int,
    graphs: int = 0,
) -> Budget:
    """Slots and pages for `demand` in what the rest leaves of `device_bytes`. Where not all fits, the longest request
    does, and checkpoints and further pages are cut by the same factor. Raises Day0Error when that one does not fit."""
    page, slot = bytes_of_page(layout, dtype), bytes_of_slot(layout, dtype)
    stateful = any(c.role == "per_sequence" for c in layout.components)
    scratch = demand.running if demand.drafts and stateful else 0
    fixed = weights + workspace + graphs + (NULL_SLOT + 1 + demand.running + scratch) * slot + (NULL_PAGE + 1) * page
    longest = min(demand.longest, demand.tokens)
    left = device_bytes - fixed - pages_of(longest) * page
    if left < 0:
        room = max(0, (device_bytes - fixed) // page * PAGE_TOKENS) if page else 0
        raise Day0Error(
            f"a request of {longest} tokens does not fit: {_mib(fixed)} for weights, workspace and"
            f" {demand.running} sequences + {_mib(pages_of(longest) * page)} for its pages of {_mib(device_bytes)}",
            hint=f"serve requests of at most {room} tokens, with more memory or a smaller dtype"
            if room
            else "run fewer sequences, give more memory, or take a smaller dtype",
        )
    further = pages_of(demand.tokens) - pages_of(longest)
    wanted = demand.checkpoints * slot + further * page

    def cut(count: int) -> int:
        return count if wanted <= left else count * left // wanted

    return Budget(
        demand,
        device_bytes=device_bytes,
        weights=weights,
        workspace=workspace,
        graphs=graphs,
        page_bytes=page,
        slot_bytes=slot,
        pages=pages_of(longest) + cut(further),
        running=demand.running,
        scratch=scratch,
        checkpoints=cut(demand.checkpoints) if stateful else 0,
        stateful=stateful,
    )


def bytes_of_page(layout: Layout, dtype: torch.dtype) -> int:
    """Of all paged components together."""
    return sum(
        PAGE_TOKENS // c.tokens_per_entry * math.prod(c.shape) * component_dtype(c, dtype).itemsize
        for c in layout.components
        if c.role == "token_paged"
    )


def bytes_of_slot(layout: Layout, dtype: torch.dtype) -> int:
    """Of one sequence's state."""
    return sum(
        math.prod(c.shape) * component_dtype(c, dtype).itemsize for c in layout.components if c.role == "per_sequence"
    )


def bytes_here(device: torch.device | str) -> int:
    """What this process may take of a device's memory, with what it has taken: of a GPU as the driver says, else what
    the system has available, less where its control group allows less."""
    place = torch.device(device)
    if place.type == "cuda":
        free, _ = torch.cuda.mem_get_info(place)
        return free + torch.cuda.memory_reserved(place)
    own = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    found = int(fields["MemAvailable"].split()[0]) * 1024 + own
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return found if text == "max" else min(found, int(text))


def measured_workspace(
    model: Package, *, step_tokens: int, dtype: torch.dtype, device: torch.device | str, vocab_size: int
) -> int:
    """Bytes that a prompt's step of so many tokens takes beside weights and pools, by the GPU allocator's count."""
    runner = Runner(model, sequences=1, tokens=step_tokens, dtype=dtype, device=device)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    runner.prefill([i % vocab_size for i in range(step_tokens)])
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del runner
    # What it reserved is counted as workspace, and must not be counted as taken, too.
    torch.cuda.empty_cache()
    return peak


def _mib(count: int) -> str:
    return f"{count / _MIB:.1f} MiB"
