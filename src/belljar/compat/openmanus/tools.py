"""OpenManus' tools that run Python, all in one place."""

from belljar.compat.openmanus.tool.base import BaseTool as BaseTool
from belljar.compat.openmanus.tool.chart_visualization.python_execute import (
    NormalPythonExecute as NormalPythonExecute,
)
from belljar.compat.openmanus.tool.python_execute import PythonExecute as PythonExecute
