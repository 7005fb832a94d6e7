"""The engine's thread: what it tells, what it frees, and how it fails."""

import asyncio
import contextlib
import threading

import pytest
import torch

from day0.engine.drafting import PromptLookup
from day0.engine.request import Request, Sampling
from day0.serve.worker import ENGINE_FAILED, Progress, Worker, WorkerDown
from tests.serve.running import wait_for
from tests.serve.spelling import SpellingModel, answer_alone, spelling_engine

WAIT_S = 10


@contextlib.asynccontextmanager
async def started(engine):
    worker = Worker(engine)
    worker.start(asyncio.get_running_loop())
    try:
        yield worker
    finally:
        worker.stop("the test is over")
        assert await asyncio.to_thread(worker.join, WAIT_S)


class Heard:
    """What a listener was told, and a way to wait for its end."""

    def __init__(self):
        self.news: list[Progress] = []
        self.over = asyncio.Event()
        self.thread: int | None = None

    def __call__(self, progress: Progress) -> None:
        self.thread = threading.get_ident()
        assert not self.over.is_set(), "nothing comes after the end"
        self.news.append(progress)
        if progress.ended is not None or progress.refused is not None:
            self.over.set()

    async def end(self) -> Progress:
        async with asyncio.timeout(WAIT_S):
            await self.over.wait()
        return self.news[-1]

    @property
    def tokens(self) -> list[int]:
        return [d.token for progress in self.news for d in progress.drawn]


def held(engine) -> tuple[int, int]:
    engine.store.index.clear()
    engine.store.check()
    return engine.store.pages.used, engine.store.slots.used


def test_tokens_come_as_they_are_made_in_the_loops_thread():
    async def main():
        engine = spelling_engine()
        async with started(engine) as worker:
            requests = [Request(tuple(f"prompt {i}".encode()), Sampling(max_tokens=10 + i)) for i in range(5)]
            heard = [Heard() for _ in requests]
            for request, listener in zip(requests, heard, strict=True):
                worker.submit(request, listener)
            ends = [await h.end() for h in heard]
            assert [e.ended for e in ends] == ["length"] * 5
            for request, h in zip(requests, heard, strict=True):
                assert h.tokens == answer_alone(request.prompt, request.sampling).output
                assert len(h.news) > 5 and h.thread == threading.get_ident()
                assert [p.admitted is not None for p in h.news] == [True] + [False] * (len(h.news) - 1)
                assert h.news[0].admitted <= h.news[0].at <= h.news[-1].at
        assert held(engine) == (0, 0)

    asyncio.run(main())


def test_several_tokens_of_one_step_are_told_once_each():
    async def main():
        engine = spelling_engine(SpellingModel(wild=False), drafter=PromptLookup(), draft_tokens=4)
        request = Request(tuple(b"ab" * 20), Sampling(max_tokens=80))
        async with started(engine) as worker:
            heard = Heard()
            worker.submit(request, heard)
            assert (await heard.end()).ended == "length"
        assert max(len(p.drawn) for p in heard.news) > 1, "nothing was drafted"
        assert heard.tokens == request.output and len(heard.tokens) == 80

    asyncio.run(main())


def test_cancelling_frees_everything_and_disturbs_nobody():
    async def main():
        engine = spelling_engine(max_running=2)
        async with started(engine) as worker:
            gone = [Heard() for _ in range(4)]  # two that run, two that wait
            requests = [Request(tuple(b"x" * (70 + i)), Sampling(max_tokens=5000)) for i in range(4)]
            for request, listener in zip(requests, gone, strict=True):
                worker.submit(request, listener)
            stays = Request(tuple(b"it stays"), Sampling(max_tokens=12))
            listener = Heard()
            worker.submit(stays, listener)
            for request in requests:
                worker.cancel(request)
            assert [(await h.end()).ended for h in gone] == ["cancelled"] * 4
            assert (await listener.end()).ended == "length"
            assert listener.tokens == answer_alone(stays.prompt, stays.sampling).output
        assert held(engine) == (0, 0)

    asyncio.run(main())


def test_what_could_never_run_is_refused_and_the_rest_goes_on():
    async def main():
        engine = spelling_engine()
        async with started(engine) as worker:
            wrong, good = Heard(), Heard()
            worker.submit(Request((1, 9999), Sampling()), wrong)
            worker.submit(Request((1, 2), Sampling(max_tokens=3)), good)
            assert "vocabulary" in (await wrong.end()).refused.message
            assert (await good.end()).ended == "length"

    asyncio.run(main())


def test_logits_that_are_no_numbers_fail_one_request_only():
    async def main():
        model = SpellingModel()
        engine = spelling_engine(model)

        def poison(batch):
            # The sequence whose prompt is all x reads a key that is no number.
            for s, (first, _, context) in enumerate(batch.spans()):
                if context == 0 and int(batch.token_ids[first]) == ord("x"):
                    poisoned.append(int(batch.page_table[s, 0]))
                if poisoned and int(batch.page_table[s, 0]) == poisoned[0] and context > 80:
                    engine.store.memory["keys"][poisoned[0] * 64] = float("nan")

        poisoned: list[int] = []
        model.before_step = poison
        async with started(engine) as worker:
            bad, good = Heard(), Heard()
            other = Request(tuple(b"good"), Sampling(max_tokens=60))
            worker.submit(Request(tuple(b"x" * 70), Sampling(max_tokens=60)), bad)
            worker.submit(other, good)
            end = await bad.end()
            assert end.ended == "error" and "not numbers" in end.error
            assert len(bad.tokens) > 5
            assert (await good.end()).ended == "length"
            assert good.tokens == answer_alone(other.prompt, other.sampling).output
            assert worker.down == ""
        assert held(engine) == (0, 0)

    asyncio.run(main())


def test_a_failing_engine_ends_all_requests_with_one_error():
    async def main():
        model = SpellingModel()
        steps = []

        def fail(batch):
            steps.append(batch)
            if len(steps) == 5:
                raise RuntimeError("the device is lost")

        model.before_step = fail
        engine = spelling_engine(model, max_running=2)
        async with started(engine) as worker:
            heard = [Heard() for _ in range(4)]
            for listener in heard:
                worker.submit(Request((1, 2, 3), Sampling(max_tokens=100)), listener)
            ends = [await h.end() for h in heard]
            assert {(e.ended, e.error) for e in ends} == {("error", ENGINE_FAILED)}
            assert worker.down == ENGINE_FAILED
            with pytest.raises(WorkerDown):
                worker.submit(Request((1,), Sampling()), Heard())

    asyncio.run(main())


def test_nothing_is_taken_before_the_start_and_after_the_end():
    async def main():
        worker = Worker(spelling_engine())
        with pytest.raises(WorkerDown, match="not started"):
            worker.submit(Request((1,), Sampling()), Heard())
        async with started(spelling_engine()) as worker:
            listener = Heard()
            worker.submit(Request((1,), Sampling(max_tokens=12_000)), listener)
        end = await listener.end()
        assert (end.ended, end.error) == ("error", "the test is over")
        with pytest.raises(WorkerDown, match="the test is over"):
            worker.submit(Request((1,), Sampling()), Heard())

    asyncio.run(main())


def test_a_loop_that_is_gone_ends_the_requests_and_lets_the_worker_end():
    engine = spelling_engine()
    worker = Worker(engine)
    request = Request((1, 2), Sampling(max_tokens=12_000))

    async def main():
        worker.start(asyncio.get_running_loop())
        worker.submit(request, lambda progress: None)

    asyncio.run(main())
    wait_for(lambda: request.finished == "cancelled")
    worker.stop("over")
    assert worker.join(WAIT_S)
    assert torch.is_grad_enabled()
