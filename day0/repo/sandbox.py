"""Run a function in a confined subprocess: for repo code, which is a stranger's.

The subprocess can read Python, the system's libraries and `read_paths`; write to `write_paths` and a scratch folder;
nothing else of the file system, no network, no other processes. Limits: wall time, CPU time, address space, file size.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import day0
from day0.errors import Day0Error

MAX_FILE_BYTES = 8 * 1024**3
_MAX_REPLY_BYTES = 256 * 1024**2
_LOG_TAIL_BYTES = 8192
_PROBE_MEMORY_BYTES = 1024**3
_PROBE_TIMEOUT_S = 30.0
_SYSTEM_READ_PATHS = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/self",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/dev/urandom",
)
_SYSTEM_WRITE_PATHS = ("/dev/null", "/dev/zero")
_KEPT_ENVIRONMENT = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "TZ")


def run_sandboxed(
    target: str,
    payload: Mapping[str, Any],
    *,
    timeout_s: float,
    memory_bytes: int,
    read_paths: Iterable[Path] = (),
    write_paths: Iterable[Path] = (),
    unsandboxed: bool = False,
) -> dict[str, Any]:
    """Call `function(payload)` of `target` ("package.module:function") in a confined subprocess; return its dict.

    Payload and result are JSON; tensors go through safetensors files in a folder of `write_paths`. `memory_bytes`
    bounds the address space (importing torch alone maps several GB). With `unsandboxed` only the limits and the minimal
    environment apply; without it the call is refused where file system and network cannot be isolated.

    The result comes from untrusted code: check it. Raises Day0Error: refused, out of time or memory, crashed, or the
    function raised (its traceback is a note of the error).
    """
    reply = _reply(
        target,
        payload,
        timeout_s=timeout_s,
        memory_bytes=memory_bytes,
        read_paths=read_paths,
        write_paths=write_paths,
        unsandboxed=unsandboxed,
    )
    result: dict[str, Any] = reply["result"]
    return result


def sandbox_capabilities() -> dict[str, bool | str]:
    """What holds for a confined subprocess on this machine, tried in one.

    Keys `filesystem`, `network`, `processes`, `signals`, `tasks`, `limits`, `no_new_privs`: the means in words, or
    False. Remote code needs the first two.
    """
    held: dict[str, str] = {}
    if sys.platform == "linux":
        held = _reply(None, {}, timeout_s=_PROBE_TIMEOUT_S, memory_bytes=_PROBE_MEMORY_BYTES)["held"]
    names = ("filesystem", "network", "processes", "signals", "tasks", "limits", "no_new_privs")
    return {name: held.get(name, False) for name in names}


def _reply(
    target: str | None,
    payload: Mapping[str, Any],
    *,
    timeout_s: float,
    memory_bytes: int,
    read_paths: Iterable[Path] = (),
    write_paths: Iterable[Path] = (),
    unsandboxed: bool = False,
) -> dict[str, Any]:
    if sys.platform != "linux":
        raise Day0Error("repo code runs only on Linux, where it can be confined", hint="use a Linux machine")
    with tempfile.TemporaryDirectory(prefix="day0-sandbox-") as temporary:
        scratch = Path(temporary) / "scratch"
        scratch.mkdir()
        request = {
            "target": target,
            "payload": dict(payload),
            "read_paths": [*_SYSTEM_READ_PATHS, *map(str, _python_paths()), *map(_absolute, read_paths)],
            "write_paths": [*_SYSTEM_WRITE_PATHS, str(scratch), *map(_absolute, write_paths)],
            "memory_bytes": memory_bytes,
            "cpu_s": math.ceil(timeout_s * (os.cpu_count() or 1)) + 1,
            "file_bytes": MAX_FILE_BYTES,
            "unsandboxed": unsandboxed,
        }
        stdin, stdout, stderr = (Path(temporary) / name for name in ("request.json", "reply.json", "stderr.txt"))
        stdin.write_text(json.dumps(request))
        with stdin.open("rb") as source, stdout.open("wb") as sink, stderr.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "day0.repo.sandbox_worker"],
                stdin=source,
                stdout=sink,
                stderr=log,
                cwd=scratch,
                env=_environment(scratch),
                start_new_session=True,
            )
            try:
                status = process.wait(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                raise Day0Error(
                    f"the repo's code did not end within {timeout_s:g} s and was killed",
                    hint="give it more time, or check what the code waits for",
                ) from error
            finally:
                _kill_group(process)
        return _checked(stdout, stderr, status, memory_bytes)


def _checked(stdout: Path, stderr: Path, status: int, memory_bytes: int) -> dict[str, Any]:
    log = _tail(stderr)
    try:
        reply = json.loads(stdout.read_bytes()) if stdout.stat().st_size <= _MAX_REPLY_BYTES else None
    except (ValueError, RecursionError):
        reply = None
    if status == 0 and isinstance(reply, dict) and isinstance(reply.get("held"), dict) and "error" not in reply:
        if "result" not in reply or isinstance(reply["result"], dict):  # no result: the probe
            return reply
    kind = reply.get("error") if isinstance(reply, dict) else None
    message = " ".join(str(reply.get("message")).split())[:500] if isinstance(reply, dict) else ""
    if kind == "isolation":
        error = Day0Error(
            f"the {message} cannot be isolated on this machine, so the repo's code is not run",
            hint="see `day0 doctor`; use another machine, or accept the risk with --trust-remote-code=unsandboxed",
        )
    elif kind == "memory":
        error = Day0Error(
            f"the repo's code needs more than its {memory_bytes / 1024**3:.1f} GiB of address space",
            hint="allow it more memory",
        )
    elif kind == "exception":
        error = Day0Error(f"the repo's code failed: {message}", hint="see its traceback with --debug")
        log = str(reply.get("traceback")) if isinstance(reply, dict) else log
    elif status < 0:
        error = Day0Error(
            f"the repo's code was ended by signal {-status} ({signal.strsignal(-status)})",
            hint="it crashed or reached a limit: allow it more memory or time, or check the code",
        )
    else:
        error = Day0Error(
            f"the repo's code gave no usable reply (exit status {status})", hint="see its output with --debug"
        )
    error.add_note(log)
    raise error


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(scratch: Path) -> dict[str, str]:
    """No token, no key, no proxy: only what Python and torch need."""
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    return kept | {
        "PATH": "/usr/bin:/bin",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "HF_HOME": str(scratch),
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, _import_paths())),
    }


def _import_paths() -> list[Path]:
    """Folders of sys.path, without any that would open the user's home: those hold more than code."""
    home = Path.home()
    entries = [Path(entry) for entry in sys.path if entry]
    return [entry for entry in entries if entry.is_absolute() and not home.is_relative_to(entry)]


def _python_paths() -> list[Path]:
    """What the interpreter reads: its libraries, the import path, and day0 with the folders it links to."""
    package = Path(day0.__file__).parent
    linked = [child.resolve() for child in package.iterdir() if child.is_symlink()]
    libraries = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    shared = Path(sys.base_prefix) / "lib"
    return [*libraries, shared, Path(sys.prefix) / "pyvenv.cfg", *_import_paths(), package, *linked]


def _absolute(path: Path) -> str:
    return os.path.abspath(path)
