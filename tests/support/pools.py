"""What the tests of pools share."""

import anyio

import setting
from belljar import AsyncPool


def a_pool(kind=AsyncPool, **options):
    # An ordinary user without control groups has best effort.
    usual = {"environment": "python", "min_ready": 1, "max_total": 3}
    usual |= {} if setting.COUNTED else {"strict": False}
    return kind(**{**usual, **options})


async def eventually(holds):
    with anyio.fail_after(30):
        while not holds():
            await anyio.sleep(0.005)


def guests_of(pool):
    """The warm ones that wait, themselves."""
    return [
        ready.guest._guest
        for bucket in pool._guests.state.buckets.values()
        for ready in bucket.ready
    ]
