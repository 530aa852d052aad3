"""Warm guests, kept ready for tenants: AsyncPool, and Pool, which blocks."""
