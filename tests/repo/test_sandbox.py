import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from day0.errors import Day0Error
from day0.repo import sandbox
from day0.repo.sandbox import run_sandboxed, sandbox_capabilities

GIB = 1024**3

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """run(body, payload, **options): run `body` as the function `use(payload)` of a module, in the sandbox."""
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.syspath_prepend(str(code))

    def run_body(body: str, payload: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        (code / "stranger.py").write_text("def use(payload):\n" + textwrap.indent(textwrap.dedent(body), "    "))
        options = {"timeout_s": 20, "memory_bytes": GIB} | options
        return run_sandboxed("stranger:use", payload or {}, **options)

    return run_body


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def attempt(body: str) -> str:
    """Source that tries `body` and returns the name of the error it meets, or "done"."""
    return f"try:\n{textwrap.indent(textwrap.dedent(body), '    ')}\nexcept OSError as error:\n    return " + (
        '{"outcome": type(error).__name__}\nreturn {"outcome": "done"}'
    )


def test_this_machine_isolates() -> None:
    held = sandbox_capabilities()
    assert all(held[name] for name in ("filesystem", "network", "processes", "limits", "no_new_privs")), held


def test_payload_and_result_pass_through(run: Run) -> None:
    payload = {"n": [1, 2.5, None], "text": "é\n", "deep": {"a": True}}
    assert run("print('to stderr')\nreturn {'back': payload}", payload) == {"back": payload}


def test_reads_only_what_it_may(run: Run, tmp_path: Path) -> None:
    for name in ("secret", "shown"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    read = attempt("return {'outcome': open(payload['path']).read()}")
    shown = {"read_paths": [tmp_path / "shown"]}
    assert run(read, {"path": str(tmp_path / "shown" / "file")}, **shown) == {"outcome": "shown"}
    assert run(read, {"path": str(tmp_path / "secret" / "file")}, **shown) == {"outcome": "PermissionError"}
    assert run(read, {"path": str(tmp_path / "shown/../secret/file")}, **shown) == {"outcome": "PermissionError"}
    (tmp_path / "shown" / "link").symlink_to(tmp_path / "secret" / "file")
    assert run(read, {"path": str(tmp_path / "shown" / "link")}, **shown) == {"outcome": "PermissionError"}
    # The same code reads it without the sandbox: what stopped it was the sandbox.
    assert run(read, {"path": str(tmp_path / "secret" / "file")}, unsandboxed=True) == {"outcome": "secret"}


def test_reads_nothing_of_the_user_or_other_processes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text("hf_secret")
    monkeypatch.setenv("HOME", str(home))
    body = """
    import os
    outcomes = {}
    for path in payload["paths"]:
        try:
            os.listdir(path) if os.path.isdir(path) else open(path).read()
            outcomes[path] = "read"
        except PermissionError:
            outcomes[path] = "refused"
    return outcomes
    """
    paths = ["/", "/etc/passwd", f"/proc/{os.getpid()}/environ", str(home), str(home / "token")]
    assert run(body, {"paths": paths}) == dict.fromkeys(paths, "refused")
    assert run(body, {"paths": paths}, unsandboxed=True) == dict.fromkeys(paths, "read")


def test_writes_only_where_it_may(run: Run, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    for folder in (out, other):
        folder.mkdir()
        (folder / "kept").write_text("kept")
    body = """
    import os
    kept, new = payload["at"] + "/kept", payload["at"] + "/new"
    attempts = {
        "create": lambda: open(new, "w").write("x"),
        "append": lambda: open(kept, "a").write("x"),
        "truncate": lambda: os.truncate(kept, 0),
        "make folder": lambda: os.mkdir(payload["at"] + "/folder"),
        "link": lambda: os.symlink("kept", payload["at"] + "/link"),
        "hard link": lambda: os.link(kept, payload["at"] + "/hard"),
        "rename": lambda: os.rename(kept, kept + "2"),
        "remove": lambda: os.remove(kept if os.path.exists(kept) else kept + "2"),
    }
    outcomes = {}
    for name, action in attempts.items():
        try:
            action()
            outcomes[name] = "done"
        except PermissionError:
            outcomes[name] = "refused"
    return outcomes
    """
    options = {"read_paths": [other], "write_paths": [out]}
    assert set(run(body, {"at": str(other)}, **options).values()) == {"refused"}
    assert [(file.name, file.read_text()) for file in other.iterdir()] == [("kept", "kept")]
    assert set(run(body, {"at": str(out)}, **options).values()) == {"done"}


@pytest.mark.parametrize("call", ["os.chmod(path, 0o777)", "os.chown(path, 0, 0)", "os.setxattr(path, 'user.a', b'1')"])
def test_modes_and_owners_stay(run: Run, tmp_path: Path, call: str) -> None:
    (tmp_path / "file").write_text("")
    body = attempt(f"import os\npath = payload['path']\n{call}")
    assert run(body, {"path": str(tmp_path / "file")}, read_paths=[tmp_path]) == {"outcome": "PermissionError"}


def test_scratch_is_writable_and_goes_away(run: Run) -> None:
    body = """
    import os, tempfile
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("x")
    open("here", "w").write("x")
    return {"cwd": os.getcwd(), "tmp": tempfile.gettempdir(), "home": os.path.expanduser("~")}
    """
    result = run(body)
    assert result["cwd"] == result["tmp"] == result["home"]
    assert not Path(result["cwd"]).exists()


def test_no_tcp_to_a_loopback_listener(run: Run, listener: socket.socket) -> None:
    body = attempt("import socket\nsocket.create_connection(('127.0.0.1', payload['port']), timeout=5)")
    port = {"port": listener.getsockname()[1]}
    assert run(body, port) == {"outcome": "PermissionError"}
    assert run(body, port, unsandboxed=True) == {"outcome": "done"}


def test_no_socket_of_any_kind(run: Run) -> None:
    body = """
    import itertools, socket
    made = []
    families = ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"]
    for family, kind in itertools.product(families, ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"]):
        try:
            socket.socket(getattr(socket, family), getattr(socket, kind))
            made.append([family, kind])
        except OSError:
            pass
    return {"made": made}
    """
    assert ["AF_INET", "SOCK_DGRAM"] in run(body, unsandboxed=True)["made"]
    assert run(body) == {"made": []}


@pytest.mark.parametrize("body", ["os.fork()", "subprocess.run(['/bin/true'])", "os.execv('/bin/true', ['true'])"])
def test_no_other_program(run: Run, body: str) -> None:
    assert run(attempt(f"import os, subprocess\n{body}")) == {"outcome": "PermissionError"}


def test_threads_are_fine(run: Run) -> None:
    body = """
    import threading
    seen = []
    threads = [threading.Thread(target=seen.append, args=(index,)) for index in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return {"seen": sorted(seen)}
    """
    assert run(body) == {"seen": list(range(8))}


@pytest.mark.parametrize("landlock", ["scopes signals", "is too old to scope signals"])
def test_no_signal_to_others(run: Run, tmp_path: Path, landlock: str) -> None:
    if landlock == "is too old to scope signals":
        fault = "import day0.repo.landlock as landlock\nlandlock.SIGNAL_ABI = 99"
        (tmp_path / "code" / "sitecustomize.py").write_text(fault)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        body = attempt("import os\nos.kill(payload['pid'], 9)")
        assert run(body, {"pid": bystander.pid}) == {"outcome": "PermissionError"}
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_no_token_in_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for unsandboxed in (False, True):
        environment = run("import os\nreturn dict(os.environ)", unsandboxed=unsandboxed)
        assert "secret" not in json.dumps(environment)
        assert environment["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("unsandboxed", [False, True])
def test_killed_when_out_of_time(run: Run, unsandboxed: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    body = """
    import os, time
    open(payload["out"], "w").write(str(os.getpid()))
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
    """
    start = time.monotonic()
    with pytest.raises(Day0Error, match="did not end within 2 s and was killed"):
        run(body, {"out": str(out / "pid")}, timeout_s=2, write_paths=[out], unsandboxed=unsandboxed)
    assert time.monotonic() - start < 15
    with pytest.raises(ProcessLookupError):
        os.kill(int((out / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("body", "memory"),
    [
        ("data = bytearray(2**30)", GIB // 2),
        ("data = [bytearray(2**20) for _ in range(1024)]", GIB // 4),
        ("import torch\ntorch.ones(2**29)", 2 * GIB),
    ],
)
def test_stopped_when_out_of_memory(run: Run, body: str, memory: int) -> None:
    with pytest.raises(Day0Error, match=rf"needs more than its {memory / GIB:.1f} GiB of address space"):
        run(body + "\nreturn {}", memory_bytes=memory)


def test_file_size_is_bounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_FILE_BYTES", 100_000)
    assert run(
        attempt("open('big', 'wb', buffering=0).write(bytes(200_000))\nopen('big', 'ab', buffering=0).write(b'x')")
    ) == {"outcome": "OSError"}


def test_what_the_code_raises_is_told(run: Run) -> None:
    with pytest.raises(Day0Error, match="the repo's code failed: ValueError: two lines") as caught:
        run("raise ValueError('two\\nlines')")
    assert "\n" not in caught.value.message
    assert any("stranger.py" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 3", "TypeError: stranger:use returned int, not a dict"),
        ("return {'a': object()}", "TypeError: Object of type object is not JSON serializable"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import os; os._exit(0)", "gave no usable reply .exit status 0"),
        ("import os; os._exit(5)", "gave no usable reply .exit status 5"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", f"ended by signal {int(signal.SIGSEGV)}"),
        ("import ctypes; ctypes.string_at(0)", f"ended by signal {int(signal.SIGSEGV)}"),
    ],
)
def test_code_that_misbehaves(run: Run, body: str, message: str) -> None:
    with pytest.raises(Day0Error, match=message):
        run(body)


def test_a_missing_module(run: Run) -> None:
    with pytest.raises(Day0Error, match="ModuleNotFoundError: No module named 'nowhere_at_all'"):
        run_sandboxed("nowhere_at_all:use", {}, timeout_s=20, memory_bytes=GIB)


FAULTS = {
    "filesystem": "import day0.repo.landlock as landlock\nlandlock.landlock_abi = lambda: 2",
    "network": (
        "import day0.repo.seccomp as seccomp\n"
        "def install_filter():\n    raise OSError('no seccomp')\nseccomp.install_filter = install_filter"
    ),
    "namespaces": (
        "import ctypes\nclass Libc(ctypes.CDLL):\n    def unshare(self, flags):\n        return -1\nctypes.CDLL = Libc"
    ),
}
"""Source that takes one means from the worker before it starts, as an older kernel or a container would."""


@pytest.mark.parametrize("lacking", ["filesystem", "network"])
def test_refused_where_isolation_does_not_hold(run: Run, tmp_path: Path, lacking: str) -> None:
    (tmp_path / "code" / "sitecustomize.py").write_text(FAULTS[lacking])
    mark = tmp_path / "out"
    mark.mkdir()
    body = "open(payload['at'] + '/ran', 'w').close()\nreturn {'ran': True}"
    with pytest.raises(Day0Error, match=f"the {lacking} cannot be isolated on this machine") as caught:
        run(body, {"at": str(mark)}, write_paths=[mark])
    assert "=unsandboxed" in caught.value.hint
    assert list(mark.iterdir()) == []
    assert sandbox_capabilities()[lacking] is False
    assert run(body, {"at": str(mark)}, write_paths=[mark], unsandboxed=True) == {"ran": True}


def test_isolated_without_user_namespaces_too(run: Run, tmp_path: Path, listener: socket.socket) -> None:
    (tmp_path / "code" / "sitecustomize.py").write_text(FAULTS["namespaces"])
    assert sandbox_capabilities()["tasks"] is False
    body = attempt("import socket\nsocket.create_connection(('127.0.0.1', payload['port']), timeout=5)")
    assert run(body, {"port": listener.getsockname()[1]}) == {"outcome": "PermissionError"}


def test_torch_and_safetensors_work_inside(run: Run, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    out = tmp_path / "out"
    out.mkdir()
    save_file({"x": torch.arange(6.0).reshape(2, 3)}, out / "in.safetensors")
    body = """
    from safetensors.torch import load_file, save_file
    x = load_file(payload["at"] + "/in.safetensors")["x"]
    save_file({"y": x @ x.T}, payload["at"] + "/out.safetensors")
    return {"shape": list(x.shape)}
    """
    result = run(body, {"at": str(out)}, write_paths=[out], memory_bytes=4 * GIB, timeout_s=60)
    assert result == {"shape": [2, 3]}
    x = torch.arange(6.0).reshape(2, 3)
    assert load_file(out / "out.safetensors")["y"].equal(x @ x.T)
