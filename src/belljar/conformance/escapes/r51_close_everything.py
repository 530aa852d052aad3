# row: 51
# attempt: close every descriptor
# expect: outcome=killed
# within: 5
# control: simulated: test_control_of_the_verdict
import os

os.closerange(0, 1000)
