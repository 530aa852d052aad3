# row: 54
# attempt: a result of a hundred megabytes of text
# expect: outcome=ok|output_limit|out_of_memory
# within: 8
# oracle: flood
# control: simulated: test_control_of_the_flood_oracle
"x" * (100 << 20)
