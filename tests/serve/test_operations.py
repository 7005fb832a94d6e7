"""Running the server: health, metrics, keys, limits, disconnects, failures, and its end."""

import asyncio
import json
import logging
import socket
import threading
import time

import httpx
import openai
import pytest

from day0.engine.request import Sampling
from day0.errors import Day0Error
from day0.serve import health
from day0.serve.answering import EventStream
from day0.serve.health import KnownAnswer
from day0.serve.keys import ENVIRONMENT, ApiKeys
from day0.serve.limits import Limits
from day0.serve.schemas import CachedTokens, Usage
from day0.serve.server import listen
from day0.serve.worker import ENGINE_FAILED
from tests.serve.running import Running, running, wait_for
from tests.serve.spelling import (
    KNOWN,
    KNOWN_PROMPT,
    SpellingModel,
    answer_alone,
    byte_tokenizer,
    spelling_engine,
    spelling_served,
)

LONG = {"model": "speller", "prompt": "a long answer", "max_tokens": 10_000, "temperature": 0, "seed": 1}
SHORT = {"model": "speller", "prompt": "a short one", "max_tokens": 5, "temperature": 0}


def slow_served(seconds: float = 0.02, **changes):
    """Every step takes so long, so that there is time to do something meanwhile."""
    model = SpellingModel()
    model.before_step = lambda batch: time.sleep(seconds)
    return spelling_served(spelling_engine(model, max_running=changes.get("max_running", 16)), **changes)


def samples(server: Running) -> dict[str, float]:
    """Metrics by name, with labels as written."""
    lines = server.http.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def short_text() -> str:
    alone = answer_alone(tuple(SHORT["prompt"].encode()), Sampling(max_tokens=SHORT["max_tokens"]))
    return byte_tokenizer().decode(alone.output)


# Health


def test_health_is_green_where_the_known_answer_comes_out():
    with running(spelling_served()) as server:
        assert server.http.get("/ready").json() == {"ready": True, "why_not": None}
        answer = server.http.get("/health")
        assert (answer.status_code, answer.json()) == (200, {"status": "green", "fault": None})


def test_health_is_red_and_nothing_is_ready_where_the_answer_is_wrong(monkeypatch):
    monkeypatch.setattr(health, "_FRESH_S", 0.0)
    wrong = KnownAnswer(KNOWN_PROMPT, (*KNOWN.tokens[:-1], 1))
    with running(spelling_served(known=wrong)) as server:
        answer = server.http.get("/health")
        assert answer.status_code == 503 and answer.json()["status"] == "red"
        assert str(list(wrong.tokens)) in answer.json()["fault"]
        assert server.http.get("/ready").status_code == 503
        refused = server.http.post("/v1/completions", json=SHORT)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "not_ready"
        assert int(refused.headers["Retry-After"]) >= 1


def test_health_turns_red_when_the_model_goes_wrong(monkeypatch):
    monkeypatch.setattr(health, "_FRESH_S", 0.0)
    model = SpellingModel()
    with running(spelling_served(spelling_engine(model))) as server:
        assert server.http.get("/health").status_code == 200
        model._counting.wild = False  # from now on it answers something else
        assert server.http.get("/health").status_code == 503
        assert server.http.get("/ready").status_code == 503
        model._counting.wild = True
        assert server.http.get("/health").status_code == 200
        assert server.http.post("/v1/completions", json=SHORT).status_code == 200


def test_health_that_hangs_is_red():
    model = SpellingModel()
    let_go = threading.Event()
    with running(spelling_served(spelling_engine(model)), limits=Limits(known_answer_s=0.3, drain_s=1)) as server:
        server.service.health._checked_at = None
        model.before_step = lambda batch: let_go.wait(10)
        answer = server.http.get("/health")
        let_go.set()
        assert answer.status_code == 503 and "within 0.3 s" in answer.json()["fault"]


def test_health_comes_before_a_long_queue_and_runs_once_for_many_who_ask(monkeypatch):
    with running(slow_served(max_running=2)) as server:
        asking = [threading.Thread(target=ask_and_forget, args=(server, LONG, 2)) for _ in range(6)]
        for thread in asking:
            thread.start()
        wait_for(lambda: server.service.admission.continuations == 6)
        submitted = []
        submit = server.service.worker.submit
        monkeypatch.setattr(server.service.worker, "submit", lambda *job: (submitted.append(job), submit(*job)))
        server.service.health._checked_at = None
        began = time.monotonic()
        threads = [threading.Thread(target=server.http.get, args=("/health",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert server.http.get("/health").status_code == 200
        assert time.monotonic() - began < 1.8, "it waited for others to end"
        assert len(submitted) == 1
        for thread in asking:
            thread.join(10)
        server.wait_until_nothing_is_held()


# Metrics and logs


def test_metrics_count_what_was_done():
    with running(spelling_served()) as server:
        before = samples(server)
        prompt = "more than a page of tokens so that it is kept in memory for the second one that begins alike with it"
        for more in ("", " and on"):
            server.openai.completions.create(**SHORT | {"prompt": prompt + more})
        list(server.openai.completions.create(**SHORT, stream=True))
        assert server.http.post("/v1/completions", json=SHORT | {"n": 0}).status_code == 400
        assert server.http.get("/nowhere").status_code == 404
        now = samples(server)
        grown = {name: value - before.get(name, 0) for name, value in now.items()}
        assert grown["day0_generated_tokens_total"] == 15
        assert grown["day0_prompt_tokens_total"] == 2 * len(prompt) + 7 + len(SHORT["prompt"])
        assert grown["day0_cached_prompt_tokens_total"] == len(prompt) and grown["day0_prefix_hits_total"] == 1
        assert grown['day0_continuations_total{reason="length"}'] == 3
        assert grown['day0_responses_total{path="/v1/completions",status="200"}'] == 3
        assert grown['day0_responses_total{path="/v1/completions",status="400"}'] == 1
        assert grown['day0_responses_total{path="other",status="404"}'] == 1
        assert grown["day0_time_to_first_token_seconds_count"] == grown["day0_queue_seconds_count"] == 3
        assert grown["day0_inter_token_seconds_count"] == 12 and grown["day0_request_seconds_count"] == 3
        assert now["day0_running"] == now["day0_waiting"] == 0
        assert 0 < now["day0_pages_used"] < now["day0_pages"] == 199 and now["day0_slots"] == 63


def test_logs_are_json_with_ids_and_without_what_is_secret(caplog):
    key = "a-key-that-is-secret"
    with running(spelling_served(), keys=ApiKeys([key])) as server, caplog.at_level(logging.DEBUG, "day0.serve"):
        from day0.serve.logs import JsonLines

        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": "mine-1"}
        body = SHORT | {"prompt": "nobody shall read this", "user": "u\n1"}
        answer = server.http.post("/v1/completions", json=body, headers=headers)
        assert answer.headers["X-Request-Id"] == "mine-1"
        odd = server.http.post("/v1/completions", json=body, headers={**headers, "X-Request-Id": "no good {}"})
        assert len(odd.headers["X-Request-Id"]) == 32
        server.wait_until_nothing_is_held()
        wait_for(lambda: len([r for r in caplog.records if r.message == "request"]) >= 2)
        lines = [JsonLines().format(r) for r in caplog.records]
        assert not any(secret in line for line in lines for secret in (key, "nobody shall", answer.json()["id"]))
        requests = [json.loads(line) for line in lines if '"message": "request"' in line]
        assert requests[0]["completion_tokens"] == 5 and requests[0]["finish_reasons"] == ["length"]
        assert (requests[0]["status"], requests[0]["path"], requests[0]["user"]) == (200, "/v1/completions", "u\n1")


# Keys


def test_keys_are_asked_for_where_there_are_any(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("# two of them\nfirst-key-0001\n\n  second-key-0002\n")
    monkeypatch.setenv(ENVIRONMENT, "third-key-0003")
    with running(spelling_served(), keys=ApiKeys.found(file)) as server:
        for key in ("first-key-0001", "second-key-0002", "third-key-0003"):
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
            assert client.completions.create(**SHORT).choices[0].text == short_text()
        for header in (
            None,
            "Bearer",
            "Bearer first-key-000",
            "Bearer first-key-00011",
            "Basic first-key-0001",
            "Bearer é",
        ):
            headers = {} if header is None else {"Authorization": header.encode()}
            for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("POST", "/tokenize")):
                answer = server.http.request(method, path, json=SHORT, headers=headers)
                assert answer.status_code == 401, (header, path)
                assert answer.json()["error"]["type"] == "authentication_error"
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        with pytest.raises(openai.AuthenticationError):
            server.openai.models.list()
        assert server.http.get("/health").status_code == server.http.get("/metrics").status_code == 200


def test_owners_of_different_keys_share_no_prefix():
    prompt = "a prompt that is longer than a page and would be found in memory by whoever begins with the same words"
    with running(spelling_served(), keys=ApiKeys(["first-key-0001", "second-key-0002"])) as server:
        cached = []
        for key, more in (("first-key-0001", ""), ("second-key-0002", " 2"), ("first-key-0001", " 3")):
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
            usage = client.completions.create(**SHORT | {"prompt": prompt + more}).usage
            cached.append(usage.prompt_tokens_details.cached_tokens)
        assert cached == [0, 0, len(prompt)]


@pytest.mark.parametrize("content", ["", "# only this\n", "short\n", None])
def test_a_key_file_that_would_let_everybody_in_is_refused(tmp_path, content):
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(Day0Error) as refused:
        ApiKeys.found(file)
    assert "short\n" not in str(refused.value)


# Limits


def test_a_full_queue_is_429_with_a_time_to_come_back():
    with running(slow_served(max_running=1), limits=Limits(waiting=2, drain_s=1)) as server:
        streams = [
            server.http.send(
                server.http.build_request("POST", "/v1/completions", json=LONG | {"stream": True}), stream=True
            )
        ]
        waiting = [threading.Thread(target=ask_and_forget, args=(server, LONG)) for _ in range(2)]
        for thread in waiting:
            thread.start()
        wait_for(lambda: server.service.admission.continuations == 3)
        with pytest.raises(openai.RateLimitError) as full:
            server.openai.completions.create(**SHORT)
        assert full.value.code == "queue_full" and 1 <= int(full.value.response.headers["Retry-After"]) <= 60
        assert server.http.get("/ready").status_code == 200
        never = server.http.post("/v1/completions", json=SHORT | {"n": 4})
        assert never.status_code == 400 and never.json()["error"]["param"] == "n"
        streams[0].close()
        for thread in waiting:
            thread.join(10)
        server.wait_until_nothing_is_held()
        assert server.openai.completions.create(**SHORT).choices[0].text == short_text()


def ask_and_forget(server: Running, body: dict, seconds: float = 1.0) -> None:
    """A client that loses its patience."""
    with httpx.Client(base_url=server.url, timeout=seconds) as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=body)


def test_streams_have_a_limit_of_their_own():
    with running(slow_served(), limits=Limits(streams=1, drain_s=1)) as server:
        request = server.http.build_request("POST", "/v1/completions", json=LONG | {"stream": True})
        first = server.http.send(request, stream=True)
        assert server.http.post("/v1/completions", json=SHORT | {"stream": True}).status_code == 429
        assert server.http.post("/v1/completions", json=SHORT).status_code == 200
        first.close()
        server.wait_until_nothing_is_held()
        assert server.http.post("/v1/completions", json=SHORT | {"stream": True}).status_code == 200


def test_an_answer_that_takes_too_long_ends_with_an_error():
    with running(slow_served(), limits=Limits(request_s=0.3, drain_s=1)) as server:
        answer = server.http.post("/v1/completions", json=LONG)
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
        stream = server.http.post("/v1/completions", json=LONG | {"stream": True})
        events = stream.text.split("\n\n")
        assert json.loads(events[-2][6:])["error"]["code"] == "timeout" and "[DONE]" not in stream.text
        server.wait_until_nothing_is_held()


def test_a_body_that_does_not_come_is_not_waited_for():
    with running(spelling_served(), limits=Limits(body_s=0.2, drain_s=1)) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as slow:
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")


def test_a_body_too_large_by_its_own_account_is_not_read():
    with running(spelling_served(), limits=Limits(drain_s=1)) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 413")


# Disconnects


def test_a_stop_string_ends_the_work_and_not_only_the_text():
    with running(slow_served()) as server:
        text = byte_tokenizer().decode(answer_alone(tuple(LONG["prompt"].encode()), Sampling(max_tokens=20)).output)
        done = server.openai.completions.create(**LONG, stop=text[5:8])
        assert done.choices[0].finish_reason == "stop"
        server.wait_until_nothing_is_held()
        assert server.service.served.engine.counts.generated_tokens < 60


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_client_that_goes_frees_everything(stream, path):
    body = LONG | {"stream": stream, "n": 3}
    if path.endswith("chat/completions"):
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    with running(slow_served()) as server:
        for wait_s in (0.0, 0.05, 0.3):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
                content = json.dumps(body).encode()
                head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
                if wait_s:
                    wait_for(lambda: server.in_use()[0] == 3)
                    time.sleep(wait_s)
            server.wait_until_nothing_is_held()
        store = server.service.served.engine.store
        store.index.clear()
        assert (store.pages.used, store.slots.used) == (0, 0)
        assert server.openai.completions.create(**SHORT).choices[0].text == short_text()
        assert samples(server)['day0_continuations_total{reason="cancelled"}'] >= 6


def test_a_client_that_reads_nothing_is_given_up():
    class Endless:
        usage = Usage(
            prompt_tokens=1, completion_tokens=1, total_tokens=2, prompt_tokens_details=CachedTokens(cached_tokens=0)
        )
        choices = ()
        closed = False

        def close(self):
            self.closed = True

    async def events():
        while True:
            yield {"choices": []}

    async def never(*_):
        await asyncio.sleep(60)

    generation = Endless()
    stream = EventStream(generation, events(), send_s=0.1)
    began = time.monotonic()
    asyncio.run(stream({"type": "http", "state": {"log": {}}}, never, never))
    assert generation.closed and time.monotonic() - began < 5


# Failures


def test_a_failing_engine_is_one_clear_error_for_everybody():
    model = SpellingModel()
    with running(spelling_served(spelling_engine(model, max_running=2)), limits=Limits(drain_s=1)) as server:
        opened = [
            server.http.send(
                server.http.build_request("POST", "/v1/completions", json=LONG | {"stream": True}), stream=True
            )
            for _ in range(2)
        ]
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(server.http.post("/v1/completions", json=LONG)))
        waiting.start()
        wait_for(lambda: server.service.admission.continuations == 3)

        def fail(batch):
            raise RuntimeError("the device is lost")

        model.before_step = fail
        for stream in opened:
            text = stream.read().decode()
            assert json.loads(text.split("\n\n")[-2][6:])["error"]["message"] == ENGINE_FAILED
            assert "[DONE]" not in text
        waiting.join(10)
        assert (answers[0].status_code, answers[0].json()["error"]["message"]) == (500, ENGINE_FAILED)
        assert server.http.get("/ready").status_code == server.http.get("/health").status_code == 503
        assert server.http.post("/v1/completions", json=SHORT).status_code == 503
        assert server.in_use()[:2] == (0, 0)


def test_the_openai_client_raises_where_a_stream_ends_badly():
    model = SpellingModel()
    with running(spelling_served(spelling_engine(model)), limits=Limits(drain_s=1)) as server:
        stream = server.openai.completions.create(**LONG, stream=True)
        next(stream)

        def fail(batch):
            raise RuntimeError

        model.before_step = fail
        with pytest.raises(openai.APIError, match="the engine failed"):
            for _ in stream:
                pass


def test_a_fault_of_the_server_is_a_500_in_the_same_shape(monkeypatch):
    with running(spelling_served()) as server:
        monkeypatch.setattr(server.service, "check_model", lambda name: 1 / 0)
        answer = server.http.post("/v1/completions", json=SHORT)
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
        assert "ZeroDivision" not in answer.text and answer.headers["X-Request-Id"] in answer.text


# The end


def test_answers_under_way_are_finished_when_the_server_is_told_to_end():
    with running(slow_served(0.01), limits=Limits(drain_s=15)) as server:
        stream = server.openai.completions.create(**LONG | {"max_tokens": 80}, stream=True)
        text = next(stream).choices[0].text
        server.server.handle_exit(15, None)
        wait_for(lambda: server.service.draining)
        with pytest.raises(httpx.ConnectError):
            wait_for(lambda: httpx.get(f"{server.url}/ready", timeout=5).status_code == 0)
        last = None
        for chunk in stream:
            text += chunk.choices[0].text
            last = chunk.choices[0].finish_reason
        alone = answer_alone(tuple(LONG["prompt"].encode()), Sampling(max_tokens=80))
        assert (text, last) == (byte_tokenizer().decode(alone.output), "length")
        began = time.monotonic()
        server.thread.join(10)
        assert not server.thread.is_alive() and time.monotonic() - began < 5


def test_answers_that_take_too_long_then_end_with_an_error():
    with running(slow_served(), limits=Limits(drain_s=1)) as server:
        stream = server.openai.completions.create(**LONG, stream=True)
        next(stream)
        server.server.handle_exit(15, None)
        with pytest.raises(openai.APIError, match="shutting down"):
            for _ in stream:
                pass
        server.thread.join(10)
        assert not server.thread.is_alive()


def test_a_port_that_is_taken_is_two_lines():
    with listen("127.0.0.1", 0) as taken, pytest.raises(Day0Error, match="cannot listen on 127.0.0.1"):
        listen("127.0.0.1", taken.getsockname()[1])
