# row: 54
# attempt: a result of a hundred megabytes of text
# expect: outcome=ok|output_limit|out_of_memory
# oracle: flood
# control: simulated by flood
"x" * (100 << 20)
