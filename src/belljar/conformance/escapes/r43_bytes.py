# row: 43
# attempt: output that is no text
# expect: outcome=ok
# control: simulated by output_that_is_no_text: the text around it must arrive
import os
import sys

os.write(1, b"begin\xff\xfe\x00\xed\xa0\x80\xc3")
os.write(1, b"\xa9")
print("\ud800 \udcff")
sys.stderr.write("\udfff")
os.write(2, bytes(range(256)))
os.write(1, b"end")
"\ud800"
