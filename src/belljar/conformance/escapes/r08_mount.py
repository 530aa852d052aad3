# row: 8
# attempt: mount, remount read-write, move, unmount; by the old calls and the new
# expect: outcome=ok
# control: namespace
# trips: posture
import ctypes

from hostile import libc, syscall

MS_REMOUNT, MS_BIND, MS_MOVE, MNT_DETACH = 32, 4096, 8192, 2
text = ctypes.c_char_p
syscall("mount", text(b"tmpfs"), text(b"/tmp"), text(b"tmpfs"), 0, None)
syscall("mount", None, text(b"/"), None, MS_REMOUNT | MS_BIND, None)
syscall("mount", None, text(b"/usr/bin"), None, MS_REMOUNT | MS_BIND, None)
syscall("mount", text(b"/usr"), text(b"/workspace"), None, MS_BIND, None)
syscall("mount", text(b"proc"), text(b"/tmp"), text(b"proc"), 0, None)
syscall("umount2", text(b"/proc/sys"), MNT_DETACH)
syscall("umount2", text(b"/tmp"), MNT_DETACH)
syscall("fsopen", text(b"tmpfs"), 0)
tree = syscall("open_tree", -100, text(b"/"), 1)
syscall("move_mount", tree, text(b""), -100, text(b"/tmp"), 4)
syscall("mount_setattr", -100, text(b"/"), 0x8000, text(b"\0" * 32), 32)
syscall("fspick", -100, text(b"/"), 0)
libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None)
