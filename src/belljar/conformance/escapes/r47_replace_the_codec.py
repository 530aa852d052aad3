# row: 47
# attempt: replace the codec, the builtins and the streams, then raise
# expect: outcome=error|killed|ok
# control: simulated by verdict
import builtins
import json
import sys


def broken(*args, **kw):
    raise SystemExit(0)


json.dumps = json.loads = broken
sys.stdout = sys.stderr = object()
sys.excepthook = broken
builtins.__import__ = broken
raise ZeroDivisionError
