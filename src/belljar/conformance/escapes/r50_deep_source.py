# row: 50
# attempt: overflow the compiler
# expect: outcome=killed|error|out_of_memory
# control: simulated by verdict
compile("(" * 100_000 + ")" * 100_000, "x", "exec")
eval("-" * 500_000 + "1")
