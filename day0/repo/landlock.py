"""Landlock through raw system calls: confine this process's file access, TCP and signals for good.

Constants and structures: Linux `include/uapi/linux/landlock.h`; what each ABI version adds: the kernel's
`Documentation/userspace-api/landlock.rst`.
"""

import ctypes
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_QUERY_VERSION = 1
_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ALL_FS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_BIND_AND_CONNECT_TCP = 0b11  # ABI 4
_SCOPE_ABSTRACT_UNIX_AND_SIGNAL = 0b11  # ABI 6

FILESYSTEM_ABI = 3  # below it, a file outside the allowed paths could still be truncated
TCP_ABI = 4
SIGNAL_ABI = 6


class _RulesetAttr(ctypes.Structure):
    _fields_ = [
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    ]


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def landlock_abi() -> int:
    """ABI version that the running kernel offers; 0 without Landlock (or not on Linux)."""
    try:
        return max(0, _syscall(_CREATE_RULESET, None, 0, _QUERY_VERSION))
    except OSError:
        return 0


def restrict(read_paths: Iterable[Path], write_paths: Iterable[Path]) -> int:
    """Confine this process: read beneath `read_paths`, read and write beneath `write_paths`, execute nothing.

    TCP and signals to the outside go too where the ABI has them. Paths that do not exist are left out. The process
    must have no_new_privs set. Returns the ABI used; raises OSError where the kernel refuses.
    """
    abi = landlock_abi()
    if abi == 0:
        raise OSError("the kernel has no Landlock")
    all_fs = _ALL_FS_BY_ABI[max(version for version in _ALL_FS_BY_ABI if version <= abi)]
    attr = _RulesetAttr(
        all_fs,
        _BIND_AND_CONNECT_TCP if abi >= TCP_ABI else 0,
        _SCOPE_ABSTRACT_UNIX_AND_SIGNAL if abi >= SIGNAL_ABI else 0,
    )
    # An older kernel takes the larger structure as long as the fields it does not know are zero.
    ruleset = _syscall(_CREATE_RULESET, ctypes.byref(attr), ctypes.sizeof(attr), 0)
    try:
        for path in read_paths:
            _allow(ruleset, path, READ_FILE | READ_DIR)
        for path in write_paths:
            _allow(ruleset, path, all_fs & ~EXECUTE)
        _syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return abi


def _allow(ruleset: int, path: Path, access: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            access &= _FILE_RIGHTS
        rule = _PathBeneathAttr(access, handle)
        _syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(handle)


def _syscall(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(
        ctypes.c_long(number), *(ctypes.c_long(item) if isinstance(item, int) else item for item in arguments)
    )
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
