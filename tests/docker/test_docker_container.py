"""Containers as the engine really makes them: the filter, mounts, volumes, devices, limits.

Always by runc: what the same settings mean in gVisor is seen by the rest of the suite.
"""

import contextlib
import errno
import itertools
import json
import os
import shlex
import stat
import subprocess
import uuid
from textwrap import dedent

import pytest

import census
import docker_census
from belljar import Docker, Limits, Mount, Sandbox, StartError
from belljar.backends.docker import backend as backend_module
from belljar.backends.docker import spec
from belljar.backends.linux import seccomp
from bpf import run as simulate
from bpf_profile import AUDIT, U64
from bpf_shipped import MACHINE, NUMBERS, compiled

pytestmark = pytest.mark.docker

IMAGE = os.environ.get("BELLJAR_DOCKER_BASE", "belljar-base:bookworm")


def sandbox(docker=None, **given):
    docker = docker or Docker(image=IMAGE, runtime="runc")
    return Sandbox(backend=docker, environment="python", **given)


def value(box, code):
    return box.run_code(dedent(code)).raise_for_outcome().value


# --- the filter ------------------------------------------------------------------------------

# Each call in a process of its own, which a filter may kill.
PROBE = """
    import ctypes, os

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long

    def verdict(number, arguments):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            ctypes.set_errno(0)
            failed = call(ctypes.c_long(number), *map(ctypes.c_ulong, arguments)) == -1
            os.write(writer, b"%d" % (ctypes.get_errno() if failed else 0))
            os._exit(0)
        os.close(writer)
        said = os.read(reader, 20)
        os.close(reader)
        _, status = os.waitpid(pid, 0)
        return int(said) if said else -os.WTERMSIG(status)

    [verdict(number, arguments) for number, arguments in calls]
"""

# Refused where a directory of the host's is writable, and harmless where they are not.
MODES = [0o644, 0o4755, 0o2755, 0o6777, 1 << 32 | 0o4000]
NOWHERE = 1000  # neither a descriptor nor an address
FLAGS = [0, os.O_CREAT, os.O_TMPFILE, os.O_CREAT | os.O_TMPFILE]


def refused_somewhere():
    """Calls that native refuses, or kills for, whatever their arguments are."""
    program = compiled(MACHINE)
    # The kernel's own trampolines are beyond every filter: who else calls them is killed.
    named = [number for name, number in NUMBERS[MACHINE].items() if "probe" not in name]
    numbers = [*named, 600, 1000]
    if MACHINE == "x86_64":
        numbers += [0x40000000, 0x40000027]  # as x32 numbers them
    for number, argument in itertools.product(sorted(numbers), (0, U64)):
        arguments = [argument] * 6
        if simulate(program, arch=AUDIT[MACHINE], nr=number, args=arguments) != seccomp.ALLOW:
            yield number, arguments


def with_modes():
    where = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "mknodat": 2}
    for name, at in where.items():
        if name in NUMBERS[MACHINE]:
            for mode in MODES:
                yield NUMBERS[MACHINE][name], [mode if at == i else NOWHERE for i in range(6)]
    for flags, mode in itertools.product(FLAGS, MODES):
        yield NUMBERS[MACHINE]["openat"], [NOWHERE, NOWHERE, flags, mode, 0, 0]
    yield NUMBERS[MACHINE]["openat2"], [0] * 6


def disagreements(box, calls, deny=()):
    """Where the container's filter does not say what native's would."""
    box.put(calls=calls)
    found = value(box, PROBE)
    program = compiled(MACHINE, deny)
    names = {number: name for name, number in NUMBERS[MACHINE].items()}
    for (number, arguments), said in zip(calls, found, strict=True):
        want = simulate(program, arch=AUDIT[MACHINE], nr=number, args=arguments)
        if want == seccomp.ALLOW:
            agreed = said not in (errno.EPERM, errno.ENOSYS, -31)
        elif want == seccomp.KILL_PROCESS:
            agreed = said == -31
        else:
            agreed = said == want & 0xFFFF
        if not agreed:
            yield names.get(number, number), arguments, want, said


def test_the_engines_filter_says_what_natives_says():
    with sandbox() as box:
        wrong = list(disagreements(box, list(refused_somewhere())))
    # A libseccomp that is older than a call cannot tell it from what does not exist, and engines
    # before 22.06 have one answer for all forms that no rule names. Neither lets anything in.
    answers = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
    wrong = [each for each in wrong if not {each[2] & 0xFFFF, each[3]} <= answers]
    assert wrong == []


def test_set_id_bits_are_refused_where_the_host_could_see_them(tmp_path):
    tmp_path.chmod(0o777)
    calls = list(with_modes())
    with sandbox() as box:
        assert list(disagreements(box, calls)) == []
    with sandbox(mounts=[Mount(tmp_path, "/out", read_only=False)]) as box:
        assert list(disagreements(box, calls, seccomp.SET_ID)) == []


def test_programs_fall_back_from_calls_that_are_absent():
    """ENOSYS, not EPERM: also from an engine that ignores `defaultErrnoRet`."""
    absent = ["io_uring_setup", "clone3", "process_madvise", "cachestat"]
    with sandbox() as box:
        box.put(calls=[(NUMBERS[MACHINE][name], [0] * 6) for name in absent])
        assert value(box, PROBE) == [errno.ENOSYS] * len(absent)


# --- files -----------------------------------------------------------------------------------


def test_mounts_are_read_only_with_all_below_them_unless_told_otherwise(tmp_path):
    tmp_path.chmod(0o777)
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    (tmp_path / "in" / "below").mkdir()
    mounts = [Mount(tmp_path / "in", "/in"), Mount(tmp_path / "out", "/out", read_only=False)]
    below = os.geteuid() == 0
    if below:
        command = ["mount", "-t", "tmpfs", "-o", "mode=777", "none", tmp_path / "in" / "below"]
        subprocess.run(command, check=True)
    try:
        with sandbox(mounts=mounts) as box:
            code = """
                import os
                made = []
                for path in ("/in/a", "/in/below/a", "/out/a"):
                    try:
                        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
                        made.append(path)
                    except OSError:
                        pass
                made, os.getuid()
            """
            made, uid = value(box, code)
    finally:
        if below:
            subprocess.run(["umount", tmp_path / "in" / "below"], check=True)
    assert made == ["/out/a"]
    status = os.stat(tmp_path / "out" / "a")
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (uid, 0o644)


@contextlib.contextmanager
def image_of(*changes, script="true"):
    """The usual image, after a script of the shell's, with instructions of a Dockerfile's."""
    name = f"belljar-test-{uuid.uuid4().hex[:8]}:made"
    command = ["docker", "create", "--network", "none", "--entrypoint", "sh", IMAGE, "-c", script]
    made = subprocess.run(command, capture_output=True, check=True)
    container = made.stdout.decode().strip()
    command = ["docker", "commit", *(word for each in changes for word in ("-c", each))]
    try:
        subprocess.run(["docker", "start", "-a", container], capture_output=True, check=True)
        subprocess.run([*command, container, name], capture_output=True, check=True)
        yield name
    finally:
        subprocess.run(["docker", "rm", "-f", container], capture_output=True, check=True)
        subprocess.run(["docker", "rmi", "-f", name], capture_output=True, check=False)


@pytest.fixture
def image_with_volumes():
    """An image that wants more than it gets: volumes, an entry point, a health check, root."""
    changes = [
        'VOLUME ["/data", "/var/cache", "/workspace"]',
        'ENTRYPOINT ["/bin/false"]',
        'CMD ["nothing"]',
        "USER 0",
        "HEALTHCHECK --interval=1s CMD touch /workspace/health",
        "LABEL belljar.build=1 belljar.project=another belljar.owner.pid=1",
    ]
    with image_of(*changes) as name:
        yield name


def inspect(box):
    command = ["docker", "inspect", f"belljar-{box.id}-1"]
    told = subprocess.run(command, capture_output=True, check=True)
    return json.loads(told.stdout)[0]


def volumes():
    listed = subprocess.run(["docker", "volume", "ls", "-q"], capture_output=True, check=True)
    return set(listed.stdout.split())


def test_an_image_gets_no_more_than_any_other(image_with_volumes):
    with sandbox(Docker(image=image_with_volumes, runtime="runc")) as box:
        code = """
            import errno, os
            refused = []
            for path in ("/data/a", "/var/cache/a", "/etc/a"):
                try:
                    open(path, "w")
                except OSError as error:
                    refused.append(errno.errorcode[error.errno])
            refused, os.getuid() >= 1000
        """
        assert value(box, code) == (["EROFS"] * 3, True)
        inspected = inspect(box)
        assert "Health" not in inspected["State"]  # else the engine would run its check
        labels = inspected["Config"]["Labels"]
        assert (labels["belljar.build"], labels["belljar.project"]) == ("", "")
        assert labels["belljar.owner.pid"] == str(os.getpid())
    # Its own alone are looked at: others that use the engine have volumes, too.
    own = {mount["Name"].encode() for mount in inspected["Mounts"] if mount["Type"] == "volume"}
    assert not own & volumes()


@pytest.mark.parametrize("runtime", ["runc", "runsc"])
def test_a_volume_is_read_only_however_an_image_writes_its_place(runtime):
    """The engine takes a path by its letters, the kernel by the links that are there."""
    known = subprocess.run(["docker", "info", "-f", "{{json .Runtimes}}"], capture_output=True)
    if runtime not in json.loads(known.stdout):
        pytest.skip(f"the engine has no runtime {runtime}")
    script = "mkdir -p /a/b /x /y && ln -s /a/b /s && chmod 777 /a /a/b /x /y"
    odd = 'VOLUME ["/s/../x", "/nosuch/../y", "/workspace/"]'
    code = """
        import os
        found = []
        for place, inner, _ in os.walk("/"):
            if place in ("/proc", "/sys", "/usr"):
                inner.clear()
            elif os.access(place, os.W_OK):
                found.append(place)
        sorted(found)
    """
    with (
        image_of(odd, script=script) as name,
        sandbox(Docker(image=name, runtime=runtime)) as box,
    ):
        assert value(box, code) == ["/dev/shm", "/home/user", "/tmp", "/var/tmp", "/workspace"]
        assert value(box, "open('/workspace/a', 'w').write('x')") == 1


def test_an_image_cannot_choose_the_groups_of_its_guests(monkeypatch):
    """Who gets a number is looked up by name first, in the image's own list."""
    uid = 100_000_007
    monkeypatch.setattr(spec, "pick_uid", lambda *_: uid)
    with (
        image_of(script=f"echo '{uid}:x:42:' >> /etc/group") as name,
        pytest.raises(StartError, match="groups"),
        sandbox(Docker(image=name, runtime="runc")),
    ):
        pass


# --- greetings -------------------------------------------------------------------------------

# As a `python3` of an image: it takes the program and the key, and then says what it likes.
LIAR = """
    import hashlib, json, os, struct, time, types

    def take(size):
        data = b""
        while len(data) < size:
            data += os.read(0, size - len(data))
        return data

    sizes = take(32)
    *_, sources = [take(int(sizes[at : at + 8], 16)) for at in (0, 8, 16, 24)]
    key, number = take(32), 0
    wire = types.ModuleType("wire")
    (source,) = [v for k, v in json.loads(sources).items() if k.endswith(".protocol.wire")]
    exec(source, wire.__dict__)

    def say(data, length):
        global number
        number += 1
        head = struct.pack(">I", length)
        code = hashlib.blake2b(number.to_bytes(8, "big") + head + data, key=key, digest_size=16)
        os.write(1, head + code.digest() + data)

    def greet(words):
        data = wire.pack(wire.HELLO, 0, words)
        say(data, len(data))

    LIE
    time.sleep(1000)
"""


@contextlib.contextmanager
def liar(lie):
    program = dedent(LIAR).replace("LIE", lie)
    script = f"""
        printf %s {shlex.quote(program)} > /liar.py
        printf '#!/bin/sh\\nexec /usr/bin/env PATH=/usr/local/bin:/usr/bin python3 /liar.py\\n' \\
            > /usr/local/sbin/python3
        chmod 755 /liar.py /usr/local/sbin/python3
    """
    path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/bin:/bin"
    with image_of(path, script=script) as name:
        yield sandbox(Docker(image=name, runtime="runc"))


def containers_of(box):
    labels = [each["Labels"] or {} for each in docker_census.containers()]
    return [each for each in labels if each.get("belljar.sandbox") == f"{box.id}-1"]


def start_error(lie):
    with liar(lie) as box:
        with pytest.raises(StartError) as caught, box:
            box.run_code("1")
        census.wait_until(lambda: not containers_of(box), what="its container's end")
    return str(caught.value)


def test_a_guest_that_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(backend_module, "HELLO_TIMEOUT", 3.0)
    assert "did not come up in 3 s" in start_error("os.close(1); os.close(2)")


def test_a_key_that_is_none_is_no_greeting():
    assert "did not send a greeting: " in start_error("say(b'K' * 100, 100 | 1 << 31)")


def test_a_greeting_is_shown_without_what_commands_a_terminal():
    words = start_error(r"greet({'failed': 1, 'message': '\x1b]0;x\x07\x1b[2J\r' + 'a' * 9000})")
    assert "the imports in image" in words
    assert not [letter for letter in words if ord(letter) < 32 and letter != "\n"]
    assert len(words) < 3000


def test_a_greeting_that_lacks_what_it_should_have_is_a_start():
    with liar("greet({})") as box, box:
        box.start()
        assert box.isolation.backend == "docker"


# --- files of the guest's own ----------------------------------------------------------------


def test_what_lies_in_a_noexec_workspace_cannot_be_executed():
    script = "printf '#!/bin/sh\\necho ran' > a; chmod +x a; ./a"
    with sandbox() as box:
        assert box.commands.run(script).stdout == "ran\n"
    with sandbox(Docker(image=IMAGE, runtime="runc", noexec=True)) as box:
        assert box.commands.run(script).exit_code == 126


# --- devices and limits ----------------------------------------------------------------------


@pytest.mark.root_only
def test_a_device_is_there_if_it_was_asked_for(tmp_path):
    node = tmp_path / "zeros"
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    node.chmod(0o666)
    docker = Docker(image=IMAGE, runtime="runc", devices=[f"{node}:/dev/zeros:r"])
    with sandbox(docker) as box:
        assert value(box, "open('/dev/zeros', 'rb').read(3)") == bytes(3)
        assert value(box, "import os; os.listdir('/dev/mqueue')") == []
    with sandbox() as box:
        assert value(box, "import os; os.path.exists('/dev/zeros')") is False


def test_the_code_sees_next_to_nothing_of_the_machine():
    with sandbox() as box:
        code = """
            import os, socket
            names = [name for name in os.listdir("/proc") if not name.isdigit()]
            full = []
            for name in names:
                path = "/proc/" + name
                if os.path.isdir(path):
                    content = os.listdir(path)
                else:
                    with open(path, "rb") as file:
                        content = file.read(1)
                if content:
                    full.append(name)
            {
                "proc": sorted(full),
                "sys": os.listdir("/sys"),
                "name servers": open("/etc/resolv.conf").read(),
                "name": socket.gethostname(),
                "address": socket.gethostbyname(socket.gethostname()),
            }
        """
        seen = value(box, code)
    kept = "cpuinfo filesystems loadavg meminfo mounts net self stat thread-self uptime version"
    assert set(seen.pop("proc")) <= set(kept.split())
    address, name = "127.0.0.1", "belljar"
    assert seen == {"sys": [], "name servers": "", "name": name, "address": address}


@pytest.mark.filterwarnings("ignore:open_files=1048576:RuntimeWarning")
def test_the_smallest_limits_and_the_largest_are_taken():
    smallest = Limits(cpus=0.5, processes=4, open_files=32, workspace="64k", tmp="64k")
    for limits in (smallest, Limits(cpus=1024, processes=32768, open_files=1048576)):
        with sandbox(limits=limits) as box:
            assert value(box, "1 + 1") == 2
            assert box.isolation.layer("cpus").state == "enforced"


def test_every_setting_arrives():
    """As the engine tells it of the live container, beside what the suite sees from outside."""
    with sandbox(limits=Limits(memory="300m", processes=9)) as box:
        inspected = inspect(box)
    host = inspected["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (300 << 20, 300 << 20, 10)
    assert (host["NetworkMode"], host["ReadonlyRootfs"]) == ("none", True)
    assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], None)
    assert (host["IpcMode"], host["CgroupnsMode"]) == ("private", "private")
    assert host["LogConfig"]["Type"] == "none"
    assert inspected["Config"]["StopTimeout"] == 0
    assert int(inspected["Config"]["User"].partition(":")[0]) >= 1000
