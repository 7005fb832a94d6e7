"""A seccomp filter that takes from this process what a reference model never needs: sockets, new processes, signals to
others, file modes and owners, kernel interfaces that reach around Landlock.

Filter language: classic BPF (Linux `include/uapi/linux/filter.h`, `seccomp.h`, `audit.h`). System call numbers: the
kernel's `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h` (arm64).
"""

import ctypes
import errno
import os
import platform
from dataclasses import dataclass

_LOAD_WORD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENT_0 = 0, 4, 16  # little-endian: the low word comes first
_X32_BIT = 0x40000000
_CLONE_THREAD = 0x00010000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


@dataclass(frozen=True)
class _Machine:
    audit_arch: int
    clone: int
    kill: tuple[int, ...]  # their first argument is the process
    denied: tuple[int, ...]


_CLONE3 = 435
_DENIED_EVERYWHERE = (
    424,  # pidfd_send_signal
    425,  # io_uring_setup: its operations pass no filter
    434,  # pidfd_open
    438,  # pidfd_getfd
    452,  # fchmodat2
    463,  # setxattrat
    466,  # removexattrat
)
_MACHINES = {
    "x86_64": _Machine(
        audit_arch=0xC000003E,
        clone=56,
        kill=(62, 234, 129, 297),  # kill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo
        denied=(
            41,  # socket
            57,  # fork
            58,  # vfork
            59,  # execve
            322,  # execveat
            101,  # ptrace
            310,  # process_vm_readv
            311,  # process_vm_writev
            200,  # tkill
            *(90, 91, 268),  # chmod, fchmod, fchmodat
            *(92, 93, 94, 260),  # chown, fchown, lchown, fchownat
            *(188, 189, 190, 197, 198, 199),  # setxattr and removexattr, with l and f
            *(272, 308),  # unshare, setns
            *(248, 249, 250),  # add_key, request_key, keyctl
            304,  # open_by_handle_at
            *(298, 321, 323),  # perf_event_open, bpf, userfaultfd
        ),
    ),
    "aarch64": _Machine(
        audit_arch=0xC00000B7,
        clone=220,
        kill=(129, 131, 138, 240),
        denied=(
            198,  # socket
            221,  # execve
            281,  # execveat
            117,  # ptrace
            270,  # process_vm_readv
            271,  # process_vm_writev
            130,  # tkill
            *(52, 53),  # fchmod, fchmodat
            *(54, 55),  # fchownat, fchown
            *(5, 6, 7, 14, 15, 16),  # setxattr and removexattr, with l and f
            *(97, 268),  # unshare, setns
            *(217, 218, 219),  # add_key, request_key, keyctl
            265,  # open_by_handle_at
            *(241, 280, 282),  # perf_event_open, bpf, userfaultfd
        ),
    ),
}


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction))]


def install_filter() -> None:
    """Install the filter on this single-threaded process, for good. no_new_privs must be set.

    Denied calls fail with EPERM. Raises OSError on a machine without a table, or where the kernel refuses.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise OSError(f"no system call table for {platform.machine()}")
    instructions = _instructions(machine, os.getpid())
    array = (_Instruction * len(instructions))(*(_Instruction(*instruction) for instruction in instructions))
    program = _Program(len(instructions), array)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _instructions(machine: _Machine, pid: int) -> list[tuple[int, int, int, int]]:
    """(code, jump if true, jump if false, operand); jumps count the instructions to skip."""
    deny = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    argument_0 = (_LOAD_WORD, 0, 0, _OFFSET_ARGUMENT_0)
    program = [
        (_LOAD_WORD, 0, 0, _OFFSET_ARCH),
        (_JUMP_EQUAL, 1, 0, machine.audit_arch),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD_WORD, 0, 0, _OFFSET_NUMBER),
        (_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT),
        deny,
        # clone3 passes its flags in memory, where a filter cannot see them; on ENOSYS the C library uses clone.
        (_JUMP_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_JUMP_EQUAL, 0, 4, machine.clone),
        argument_0,
        (_JUMP_ANY_BIT, 1, 0, _CLONE_THREAD),
        deny,
        allow,
    ]
    for number in machine.kill:
        program += [(_JUMP_EQUAL, 0, 4, number), argument_0, (_JUMP_EQUAL, 1, 0, pid), deny, allow]
    for number in (*machine.denied, *_DENIED_EVERYWHERE):
        program += [(_JUMP_EQUAL, 0, 1, number), deny]
    return [*program, allow]
