"""What runs on the other side: standard library only, Python 3.9 and later.

The host sends these files to the guest as text (see `belljar.bundle`), so they import nothing
but each other, relatively.
"""
