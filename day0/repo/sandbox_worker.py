"""The child side of `day0.repo.sandbox`: confine this process, then import one module and call one function of it.

Run as `python -m day0.repo.sandbox_worker`: a request as JSON on stdin, a reply as JSON on stdout. What the called code
prints goes to stderr.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from day0.repo.landlock import FILESYSTEM_ABI, SIGNAL_ABI, TCP_ABI, restrict
from day0.repo.seccomp import install_filter

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_CAPABILITY_VERSION_3 = 0x20080522
_OPEN_FILES = 4096
_TASKS = 512  # threads, since a confined process cannot fork


def main() -> None:
    request = json.load(sys.stdin)
    reply_file = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        held = _confine(request)
        reply: dict[str, Any] = {"held": held}
        if request["target"] is not None:
            reply |= _call(request, held)
    except BaseException as error:  # SystemExit too: repo code must not end the reply
        reply = {
            "error": "memory" if _is_out_of_memory(error) else "exception",
            "message": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
        }
    with reply_file:
        json.dump(reply, reply_file)


def _call(request: dict[str, Any], held: dict[str, str]) -> dict[str, Any]:
    lacking = [what for what in ("filesystem", "network") if what not in held]
    if lacking and not request["unsandboxed"]:
        return {"error": "isolation", "message": " and ".join(lacking)}
    module, _, function = request["target"].partition(":")
    result = getattr(importlib.import_module(module), function)(request["payload"])
    if not isinstance(result, dict):
        raise TypeError(f"{request['target']} returned {type(result).__name__}, not a dict")
    json.dumps(result)
    return {"result": result}


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error)  # torch raises RuntimeError, and ENOMEM is an OSError or ImportError
    return (
        isinstance(error, MemoryError)
        or "can't allocate memory" in text
        or "not enough memory" in text
        or "Cannot allocate memory" in text
    )


def _confine(request: dict[str, Any]) -> dict[str, str]:
    """Apply limits and, unless the request says unsandboxed, isolation. Returns what holds and by which means."""
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, _PR_SET_PDEATHSIG, signal.SIGKILL)
    held: dict[str, str] = {}
    network: list[str] = []
    if not request["unsandboxed"] and _own_namespaces(libc):
        network.append("network namespace")
        # Counted per user within the namespace; outside one it would count the user's other processes as well.
        _limit(resource.RLIMIT_NPROC, _TASKS)
        held["tasks"] = f"at most {_TASKS}"
    _limit(resource.RLIMIT_AS, request["memory_bytes"])
    _limit(resource.RLIMIT_CPU, request["cpu_s"])
    _limit(resource.RLIMIT_FSIZE, request["file_bytes"])
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_CORE, 0)
    held["limits"] = "address space, CPU time, file size, open files"
    if request["unsandboxed"]:
        return held
    _drop_capabilities(libc)
    if not _prctl(libc, _PR_SET_NO_NEW_PRIVS, 1):
        return held
    held["no_new_privs"] = "set, capabilities dropped"
    signals: list[str] = []
    try:
        abi = restrict(map(Path, request["read_paths"]), map(Path, request["write_paths"]))
    except OSError as error:
        print(f"Landlock: {error}", file=sys.stderr)
    else:
        if abi >= FILESYSTEM_ABI:
            held["filesystem"] = f"Landlock ABI {abi}"
        if abi >= TCP_ABI:
            network.append("Landlock TCP rules")
        if abi >= SIGNAL_ABI:
            signals.append("Landlock scope")
    try:
        install_filter()
    except OSError as error:
        print(f"seccomp: {error}", file=sys.stderr)
    else:
        # The other two are further walls: alone they leave UDP, or the sockets of local daemons, within reach.
        held["network"] = ", ".join(["seccomp (no sockets)", *network])
        held["processes"] = "seccomp (no fork, no exec)"
        signals.insert(0, "seccomp")
    if signals:
        held["signals"] = ", ".join(signals)
    return held


def _prctl(libc: ctypes.CDLL, option: int, argument: int) -> bool:
    zero = ctypes.c_ulong(0)  # a plain int would leave the upper half of a variadic argument undefined
    return bool(libc.prctl(option, ctypes.c_ulong(argument), zero, zero, zero) == 0)


def _own_namespaces(libc: ctypes.CDLL) -> bool:
    """Move into a new user and network namespace, keeping the same user and group id there."""
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    return True


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    empty_sets = (ctypes.c_uint32 * 6)()
    libc.capset(header, empty_sets)


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(what, (value, value))


if __name__ == "__main__":
    main()
