"""Twenty sandboxes at once, under asyncio: each works on its own part, none sees another."""

import asyncio
import time

from belljar import AsyncSandbox

PARTS = 20
AT_ONCE = 8  # how many run at the same time

CODE = """\
import random
random.seed({seed})
inside = sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(20_000))
inside / 20_000 * 4
"""


async def estimate(seed: int, turn: asyncio.Semaphore) -> float:
    async with turn, AsyncSandbox(environment="python") as sandbox:
        execution = await sandbox.run_code(CODE.format(seed=seed))
        value = execution.raise_for_outcome().value
        if not isinstance(value, float):
            raise TypeError(f"part {seed} answered {value!r}")
        return value


async def main() -> None:
    began = time.perf_counter()
    turn = asyncio.Semaphore(AT_ONCE)
    estimates = await asyncio.gather(*(estimate(seed, turn) for seed in range(PARTS)))
    took = time.perf_counter() - began
    print(f"{PARTS} sandboxes in {took:.2f} s: pi is about {sum(estimates) / PARTS:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
