"""Where the parts of the project are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
BENCHMARKS = ROOT / "benchmarks"
DOCS = ROOT / "docs"
ESCAPES = ROOT / "src" / "belljar" / "conformance" / "escapes"  # hostile programs
REGRESSIONS = TESTS / "robustness" / "regressions"  # what fuzzers have found
