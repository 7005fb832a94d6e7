import io
import json
import re

import pytest

from day0.cli.output import Output, amount, ranges

ROWS = [
    {"name": "a", "time_us": 1.25, "ok": True, "list": ["x", "y"]},
    {"name": "b", "time_us": None, "ok": False, "list": []},
]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_json_is_the_only_thing_on_stdout(capsys):
    out = Output(as_json=True)
    out.table(ROWS)
    out.line("a line")
    out.value("a value")
    out.note("a note")
    out.warn("a warning")
    out.document({"rows": ROWS})
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"rows": ROWS}
    assert captured.err == "a note\nwarning: a warning\n"


def test_json_has_no_numbers_that_json_has_not(capsys):
    with pytest.raises(ValueError):
        Output(as_json=True).document({"error": float("nan")})


def test_talk_goes_to_stderr_and_data_to_stdout(capsys):
    out = Output()
    out.table(ROWS, title="these")
    out.document({"rows": ROWS})
    out.note("a note")
    captured = capsys.readouterr()
    assert captured.err == "a note\n"
    lines = captured.out.splitlines()
    assert lines[0].strip() == "these" and "time us" in captured.out
    assert any(line.split() == ["a", "1.25", "yes", "x,", "y"] for line in lines)
    assert any(line.split() == ["b", "-", "no", "-"] for line in lines)


def test_off_a_terminal_a_table_has_one_whole_row_a_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    words = "a sentence that is longer than any terminal " * 20
    title = f"{words}and a title"
    Output().table([{"why": words, "path": "/deep" * 60}, {"why": "two\nlines\tof text", "path": None}], title=title)
    first, blank, _, _, long, short, *rest = capsys.readouterr().out.splitlines()
    assert first == title and blank == ""
    assert words.strip() in long and "/deep" * 60 in long
    assert "two lines of text" in short and short.endswith("  -") and rest == [""]


def test_off_a_terminal_a_rule_is_no_longer_than_a_line(capsys):
    Output().table([{"why": "word " * 100, "n": 1}, {"why": "short", "n": 2}])
    header, rule, *_ = capsys.readouterr().out.splitlines()
    assert set(rule) == {" ", "─"} and len(rule) == 100 and len(header) > 400


def test_on_a_terminal_a_table_keeps_to_its_width(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    Output().table([{"why": "a sentence that is longer " * 20}])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert len(lines) > 10 and max(map(len, lines)) <= 40


def test_quiet_leaves_values_and_warnings(capsys):
    out = Output(quiet=True)
    out.table(ROWS)
    out.line("a line")
    out.note("a note")
    out.value("the/path")
    out.warn("careful")
    with out.progress("working"):
        pass
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("the/path\n", "warning: careful\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_reached_meanwhile_is_said_at_once(monkeypatch, terminal):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with Output().progress("working") as say:
        say("[half] done")
        assert "[half] done\n" in stream.getvalue().replace("\r", "")
    stream.truncate(0)
    with Output(quiet=True).progress("working") as say:
        say("[half] done")
    assert "half" not in stream.getvalue()


def test_details_need_verbose(capsys):
    Output().detail("fine print")
    Output(verbose=True).detail("fine print")
    assert capsys.readouterr().err == "fine print\n"


@pytest.mark.parametrize(("variable", "value"), [("CI", "true"), ("CI", "1")])
def test_ci_gets_a_line_instead_of_a_spinner(monkeypatch, variable, value):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv(variable, value)
    with Output().progress("working"):
        pass
    assert re.fullmatch(r"working \.\.\.\nworking: 0\.\d s\n", terminal.getvalue())


def test_a_terminal_gets_a_spinner_and_colour(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    with Output().progress("working"):
        pass
    Output().warn("careful")
    assert "working: 0." in terminal.getvalue()
    assert "\x1b[?25l" in terminal.getvalue() and "\x1b[33mwarning: careful" in terminal.getvalue()


def test_no_color_is_honoured(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    Output().warn("careful")
    assert "\x1b[33m" not in terminal.getvalue() and "careful" in terminal.getvalue()


def test_text_with_brackets_is_not_markup(capsys):
    Output().line("[bold]float[4, 5][/bold]")
    Output().table([{"shape": "[red]x[/red]"}])
    captured = capsys.readouterr().out
    assert "[bold]float[4, 5][/bold]" in captured and "[red]x[/red]" in captured


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (999, "999"), (1000, "1k"), (12_074_880, "12.1M"), (3.13e11, "313G"), (2.5e12, "2.5T")],
)
def test_amount(value, text):
    assert amount(value) == text


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((), ""),
        ((3,), "3"),
        ((0, 1, 2), "0-2"),
        ((0, 1, 2, 4, 5, 6), "0-2, 4-6"),
        ((7, 3, 5), "3, 5, 7"),
        ((0, 2), "0, 2"),
    ],
)
def test_ranges(layers, text):
    assert ranges(layers) == text
