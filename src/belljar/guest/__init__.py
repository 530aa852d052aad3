"""What runs inside a guest: init (PID 1) and the worker that runs the code.

The host sends these files and `belljar.protocol` to the guest as text (`belljar.backends.bundle`):
standard library only, Python 3.9 and later, relative imports.
"""
