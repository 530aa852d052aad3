"""Packages made here, so that no index is needed: a wheel, a source distribution."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import textwrap
import zipfile
from pathlib import Path


def make_wheel(directory: Path, name: str, version: str = "1.0", tag: str = "py3-none-any") -> Path:
    """A wheel with one module and one console script, both called `name`."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"def main():\n    print('{name} {version}')\n",
        f"{name}_template.py": "this is {{ not }} Python\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-tool = {name}:main\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{path},sha256={digest.decode()},{len(text)}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    wheel = directory / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def make_source_distribution(directory: Path, name: str, canary: Path) -> None:
    """A source distribution that leaves a file behind when it is built."""
    backend = f"""
        import base64, hashlib, pathlib, zipfile
        pathlib.Path({str(canary)!r}).touch()
        def build_wheel(directory, config_settings=None, metadata_directory=None):
            wheel = "{name}-1.0-py3-none-any.whl"
            with zipfile.ZipFile(pathlib.Path(directory, wheel), "w") as z:
                z.writestr("{name}.py", "")
                i = "{name}-1.0.dist-info/"
                z.writestr(i + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
                kind = "Root-Is-Purelib: true\\nTag: py3-none-any\\n"
                z.writestr(i + "WHEEL", "Wheel-Version: 1.0\\n" + kind)
                z.writestr(i + "RECORD", "")
            return wheel
    """
    pyproject = f"""
        [build-system]
        requires = []
        build-backend = "backend"
        backend-path = ["."]
        [project]
        name = "{name}"
        version = "1.0"
    """
    with tarfile.open(directory / f"{name}-1.0.tar.gz", "w:gz") as archive:
        for path, text in (
            ("pyproject.toml", pyproject),
            ("backend.py", backend),
            ("PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"),
        ):
            data = textwrap.dedent(text).encode()
            member = tarfile.TarInfo(f"{name}-1.0/{path}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
