"""The path of a cell, to be read in this order.

options, sandbox (AsyncSandbox), blocking (Sandbox), lifecycle, guest_session, channel, run,
outcome; then value_transfer, calls, commands, shell, persistence.
"""
