# row: 54
# attempt: results that contain themselves
# expect: outcome=ok
# control: simulated by flood
cycle = []
cycle.append({"self": cycle})
cycle  # noqa: B018
