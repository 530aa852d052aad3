"""The threat list as a suite that runs on the machine of whoever asks: `belljar conformance`.

`rows` says what is tried and what stops it; `escapes/` are the hostile programs; `programs` reads
their heads; `canaries`, `posture` and `counters` look from outside; `controls` runs the same
programs where nothing stops them; `checks_*` are the rows about the host's own side; `runner` puts
it together, and `report_*` write it down. Nothing here is imported by `import belljar`.
"""
