# row: 77
# attempt: reboot, load kernels and modules, swap, accounting
# expect: outcome=ok
# control: simulated by host: never run unconfined
import ctypes

from hostile import CONFINED, syscall

if CONFINED:
    text = ctypes.c_char_p
    for command in (0x01234567, 0x4321FEDC, 0x89ABCDEF, 0x45584543):
        syscall("reboot", 0xFEE1DEAD, 672274793, command, 0)
    syscall("kexec_load", 0, 0, None, 0)
    syscall("kexec_file_load", -1, -1, 0, None, 0)
    syscall("init_module", text(b"x"), 1, text(b""))
    syscall("finit_module", 0, text(b""), 0)
    syscall("delete_module", text(b"x"), 0)
    syscall("swapon", text(b"/workspace/x"), 0)
    syscall("swapoff", text(b"/dev/vda"))
    syscall("acct", text(b"/workspace/x"))
    syscall("quotactl", 0, text(b"/dev/vda"), 0, None)
    syscall("syslog", 3, text(b"x" * 100), 100)
    syscall("iopl", 3) if "iopl" in __import__("hostile")._NUMBERS else None
    syscall("vhangup")
