# row: 54
# attempt: results that contain themselves
# expect: outcome=ok
# within: 5
# control: simulated: test_control_of_the_flood_oracle
cycle = []
cycle.append({"self": cycle})
cycle  # noqa: B018
