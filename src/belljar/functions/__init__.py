"""Functions of the host that guest code may call: registered, described to the guest, called."""

from belljar.functions.registry import Functions, HostFunction, stubs

__all__ = ["Functions", "HostFunction", "stubs"]
