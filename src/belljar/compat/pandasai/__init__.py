"""PandasAI's sandbox, over Belljar:

    import pandasai as pai
    from belljar.compat.pandasai import DockerSandbox  # was: from pandasai_docker import ...

    sandbox = DockerSandbox()
    pai.chat("Which city sold most?", frame, sandbox=sandbox)

The extra is `pandasai`; PandasAI 3 is for Python 3.11 and earlier. docs/compat/pandasai.md says
what stays and what differs.
"""

from belljar.compat.pandasai.available import VERSION

# First: without PandasAI it raises an error that names the remedy.
# isort: split
from belljar.compat.pandasai.answers import (
    BadResult,
    BadSyntax,
    CodeFailed,
    CodeOutOfMemory,
    CodeTimedOut,
    NoResult,
)
from belljar.compat.pandasai.belljar_sandbox import BelljarSandbox, DockerSandbox
from belljar.compat.pandasai.serializer import CustomEncoder, ResponseSerializer

__all__ = [
    "VERSION",
    "BadResult",
    "BadSyntax",
    "BelljarSandbox",
    "CodeFailed",
    "CodeOutOfMemory",
    "CodeTimedOut",
    "CustomEncoder",
    "DockerSandbox",
    "NoResult",
    "ResponseSerializer",
]
