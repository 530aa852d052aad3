"""BaseTool: a tool of OpenManus' agents and their models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar


class BaseTool(ABC):
    name: ClassVar[str]
    description: ClassVar[str]
    parameters: ClassVar[Mapping[str, Any]]  # a JSON schema

    async def __call__(self, **arguments: Any) -> Any:
        """As a model calls it: `await tool(code="print(1)")`."""
        return await self.execute(**arguments)

    @abstractmethod
    async def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the tool does."""

    def to_param(self) -> dict[str, Any]:
        """The tool as a function that a model may call."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }
