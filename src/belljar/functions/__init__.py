"""Host functions: functions of the caller that code in the sandbox may call."""

from belljar.functions.registry import Functions, HostFunction, Registry, make_identifier, stubs

__all__ = ["Functions", "HostFunction", "Registry", "make_identifier", "stubs"]
