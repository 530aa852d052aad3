"""Host functions: functions of the caller that code in the sandbox may call."""

from belljar.functions.registry import Functions, HostFunction, stubs

__all__ = ["Functions", "HostFunction", "stubs"]
