"""What the server counts, for Prometheus: in a registry of its own, so that several servers may share a process."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from day0.engine.engine import Engine

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """Times in seconds. Labels take few values: no client can make them many."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.responses = Counter("day0_responses", "HTTP responses", ["path", "status"], registry=self.registry)
        self.finished = Counter(
            "day0_continuations", "Continuations that ended, by why", ["reason"], registry=self.registry
        )
        self.prompt_tokens = Counter("day0_prompt_tokens", "Tokens of prompts", registry=self.registry)
        self.cached_tokens = Counter(
            "day0_cached_prompt_tokens", "Tokens of prompts that were in memory already", registry=self.registry
        )
        self.generated_tokens = Counter("day0_generated_tokens", "Tokens generated", registry=self.registry)
        self.prefix_hits = Counter(
            "day0_prefix_hits",
            "Continuations that found the beginning of their prompt in memory",
            registry=self.registry,
        )
        self.queue_seconds = self._histogram("day0_queue_seconds", "From arrival to memory for the prompt")
        self.first_token_seconds = self._histogram("day0_time_to_first_token_seconds", "From arrival to first token")
        self.token_seconds = self._histogram("day0_inter_token_seconds", "Between tokens of a continuation")
        self.request_seconds = self._histogram("day0_request_seconds", "From arrival to the end of the answer")
        self.healthy = Gauge("day0_healthy", "1 where the last known answer came out right", registry=self.registry)
        self.registry.register(_EngineState(engine))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _histogram(self, name: str, what: str) -> Histogram:
        return Histogram(name, what, buckets=_SECONDS, registry=self.registry)


class _EngineState(Collector):
    """Read when asked: whole numbers, which are whole in any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        scheduler, store, counts = self._engine.scheduler, self._engine.store, self._engine.counts
        gauges = {
            "day0_running": ("Sequences that have memory", len(scheduler.running)),
            "day0_waiting": ("Requests that wait for memory", scheduler.waiting),
            "day0_pages_used": ("Token pages held, by sequences or for reuse", store.pages.used),
            "day0_pages": ("Token pages in all", store.pages.count - store.pages.reserved),
            "day0_slots_used": ("State slots held, by sequences or for reuse", store.slots.used),
            "day0_slots": ("State slots in all", store.slots.count - store.slots.reserved),
            "day0_checkpoints": ("Prefixes kept for reuse", 0 if store.index is None else len(store.index)),
        }
        for name, (what, value) in gauges.items():
            yield GaugeMetricFamily(name, what, value=value)
        counters = {
            "day0_steps": ("Steps of the engine", counts.steps),
            "day0_computed_tokens": ("Tokens that went through the model and stayed in memory", counts.computed_tokens),
            "day0_drafted_tokens": ("Tokens proposed", counts.drafted),
            "day0_accepted_tokens": ("Proposed tokens that were right", counts.accepted),
            "day0_preemptions": ("Times that a sequence made room for another", counts.preemptions),
        }
        for name, (what, value) in counters.items():
            yield CounterMetricFamily(name, what, value=value)
