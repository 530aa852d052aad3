# row: 47
# attempt: replace what the runner is made of, then die with 7
# expect: outcome=killed exit_code=7
# control: simulated by verdict
import builtins
import json
import os
import struct
import sys

from hostile import worker

runner, request = worker()
kind = type(runner)
for name in ("_run", "_execute", "_describe", "_main_result", "_show"):
    setattr(kind, name, lambda *args: ({"status": "ok"}, b"{}"))
json.dumps = lambda *args, **kw: '{"status": "ok"}'
struct.pack = lambda *args: b""
sys.stdout = sys.stderr = None
sys.addaudithook(lambda event, arguments: None)
sys.settrace(lambda *args: None)
builtins.print = builtins.repr = builtins.str = None
os._exit(7)
