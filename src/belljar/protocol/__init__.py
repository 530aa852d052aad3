"""What host and guest both speak: frames, values as data, large blobs, seals.

The host sends these files to the guest together with `belljar.guest`: standard library only, Python
3.9 and later, relative imports.
"""
