# row: 44
# attempt: control sequences for the terminal of whoever looks
# expect: outcome=error error=Evil\x1b[31m
# control: simulated by control_sequences: the raw text has them
print("\x1b]0;owned\x07\x1b[2J\x9b31m\r")


class Evil(Exception):
    pass


Evil.__name__ = "Evil\x1b[31m"
raise Evil("\x1b]52;c;ZXZpbA==\x07")
