"""NormalPythonExecute: Python for data analysis and reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from belljar.compat.openmanus.tool.python_execute import Observation, PythonExecute
from belljar.errors import unknown_option

CODE_TYPES = ("process", "report", "others")


class NormalPythonExecute(PythonExecute):
    """The same tool, described to a model as one for data analysis."""

    name = "python_execute"
    description = (
        "Runs Python code in a sandbox for data analysis, data reports and other work without "
        "direct visualization. numpy, pandas, scipy, scikit-learn, matplotlib, seaborn are there."
    )
    parameters: ClassVar[Mapping[str, Any]] = {
        "type": "object",
        "properties": {
            "code_type": {
                "type": "string",
                "description": "What the code is for: data processing, a data report, or others.",
                "default": "process",
                "enum": list(CODE_TYPES),
            },
            "code": {
                "type": "string",
                "description": (
                    "The Python code to run. Print everything that is to be seen: overview of "
                    "the data, columns, statistics, findings. Save reports and processed data in "
                    "the current directory; later calls find them there."
                ),
            },
        },
        "required": ["code"],
    }

    async def execute(  # type: ignore[override]  # as the original has it
        self, code: str, code_type: str | None = None, timeout: float = 5
    ) -> Observation:
        """Run code for at most `timeout` seconds. `code_type` is a word for the record."""
        if code_type is not None and code_type not in CODE_TYPES:
            raise unknown_option("code_type", str(code_type), CODE_TYPES)
        return await super().execute(code, timeout)
