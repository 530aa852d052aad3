"""What a manager raises beside what its sandboxes raise.

SandboxError
├── ManagerFull         no place is free
│   └── QuotaExceeded   this owner has as many sandboxes as one may have
├── NameTaken           there is a sandbox of this name
├── SandboxMissing      there is none of this name, or no more (a KeyError)
└── SandboxClosed
    └── ManagerClosed   the manager is closed, or being closed
"""

from __future__ import annotations

from belljar.errors import SandboxClosed, SandboxError


class ManagerFull(SandboxError):
    """There are as many sandboxes as the manager may have."""


class QuotaExceeded(ManagerFull):
    """The owner has as many sandboxes as one owner may have."""


class NameTaken(SandboxError):
    """There is a sandbox of this name already, or one is being made."""


class SandboxMissing(SandboxError, KeyError):
    """The manager has no sandbox of this name: it never had, or it was deleted, swept or lost."""


class ManagerClosed(SandboxClosed):
    """The manager is closed, or being closed, and makes no more sandboxes."""
