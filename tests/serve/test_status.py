"""What the server shows of itself: rates of what happened lately, a table on a terminal, log lines elsewhere."""

import io
import json
import logging
import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from day0.engine.drafting import PromptLookup
from day0.engine.request import Request, Sampling
from day0.serve.service import Service
from day0.serve.status import Look, Status, live_table, log_lines, table
from tests.cli.run_day0 import START
from tests.demo_line import demo_line
from tests.serve.running import wait_for
from tests.serve.spelling import spelling_engine, spelling_served

LOOK = Look(12.34, 3, 2, 0.5, 0.25, None, 0.6, "")


def drawn(look: Look) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table(look))
    return console.file.getvalue()


def service_of(engine) -> Service:
    return Service(spelling_served(engine))


def test_rates_are_of_the_last_seconds_and_shares_of_what_happened_there():
    now = 100.0
    engine = spelling_engine(pages=11, slots=9, max_running=8)
    status = Status(service_of(engine), window_s=5, clock=lambda: now)
    now += 1
    first = status.look()
    assert (first.tokens_per_s, first.running, first.queued) == (0, 0, 0)
    assert first.accepted is None and first.from_memory is None and first.pages == first.slots == 0

    prompt = tuple(b"a prompt of more than a page, so that it is kept in memory for whoever begins as it does")
    engine.run([Request(prompt, Sampling(max_tokens=8))])
    now += 3
    look = status.look()
    assert look.tokens_per_s == 8 / 4 and look.from_memory == 0 and look.accepted is None
    assert look.pages == engine.store.pages.used / 10 > 0 and look.slots == engine.store.slots.used / 8 > 0
    now += 4
    # The look at 101 s is the newest that is five seconds old by now.
    assert status.look().tokens_per_s == pytest.approx(8 / 7)
    engine.run([Request((*prompt, 65), Sampling(max_tokens=8))])
    now += 4
    look = status.look()
    assert look.tokens_per_s == pytest.approx(8 / 8) and look.from_memory == len(prompt) / (len(prompt) + 1)
    now += 50
    status.look()
    now += 6
    assert status.look().tokens_per_s == 0


def test_it_sees_who_runs_and_who_waits_and_how_drafts_fare():
    engine = spelling_engine(max_running=1, drafter=PromptLookup(), draft_tokens=3)
    status = Status(service_of(engine), window_s=60)
    for _ in range(3):
        engine.add(Request(tuple(b"abcabcabcabcabcabc"), Sampling(max_tokens=30)))
    engine.step()
    look = status.look()
    assert (look.running, look.queued) == (1, 2)
    while not engine.idle:
        engine.step()
    assert engine.counts.drafted and status.look().accepted == engine.counts.accepted / engine.counts.drafted
    assert status.look().not_ready == "the engine has not started"


def test_the_table_says_it_all_and_why_nothing_is_taken():
    text = drawn(LOOK)
    for word in ("tokens/s", "12.3", "running", "queued", "50%", "25%", "60%", "accepted", "-"):
        assert word in text
    assert "not ready" not in text
    assert "not ready: the engine failed" in drawn(replace(LOOK, not_ready="the engine failed"))


def test_a_terminal_gets_the_table_with_what_is_written_above_it():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with live_table(service_of(spelling_engine()), console):
        wait_for(lambda: "tokens/s" in out.getvalue())
        sys.stderr.write("a line of the log\n")
    assert "a line of the log" in out.getvalue()


def test_the_log_has_a_line_when_something_happened(caplog):
    engine = spelling_engine()
    with caplog.at_level(logging.INFO, "day0.serve"), log_lines(service_of(engine), 0.05):
        time.sleep(0.2)
        assert not caplog.records
        engine.run([Request((1, 2, 3), Sampling(max_tokens=4))])
        wait_for(lambda: caplog.records)
        time.sleep(0.2)
    assert sum(record.fields["tokens_per_s"] > 0 for record in caplog.records) >= 1
    fields = caplog.records[0].fields
    assert set(fields) == set(Look.__dataclass_fields__) and json.dumps(fields)
    assert len(caplog.records) <= 2


def test_the_command_draws_it_on_a_terminal(tmp_path):
    line = demo_line(tmp_path / "demo.day0")
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", START, "serve", "-w", line.workspace.folder, "--port", "0", "--memory-tokens", "1024"],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "CI": "", "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    seen = b""
    try:
        end = time.monotonic() + 90
        while b"tokens/s" not in seen and time.monotonic() < end:
            if select.select([mine], [], [], 1)[0]:
                seen += os.read(mine, 65536)
        assert b"tokens/s" in seen and b"state slots" in seen
        process.send_signal(signal.SIGTERM)
        while True:
            try:
                if not os.read(mine, 65536):
                    break
            except OSError:  # how a terminal tells its end on Linux
                break
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)
        os.close(mine)
