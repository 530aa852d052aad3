"""The threat list as a test suite for this machine: `belljar conformance`.

`rows` lists the threats and what stops each. `escapes/` holds the hostile programs, and `programs`
reads their headers. `attempts` runs one in a sandbox; `canaries`, `posture`, `processes` and
`footprint` observe it from outside. `controls` runs the same programs where nothing stops them.
`checks_*` test the host's side. `runner` runs the rows, and `report_*` write the report.
`import belljar` imports nothing of this package.
"""
