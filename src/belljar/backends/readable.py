"""Waiting until there is something to read, on the shortest way that an event loop has."""

from __future__ import annotations

import asyncio
import socket

import anyio


async def wait(sock: socket.socket) -> None:
    """As anyio.wait_readable, for a descriptor that nobody else waits for: under asyncio without
    the turn of the loop that it takes first, which a guest's answer does not need."""
    if not _in_asyncio_task():
        await anyio.wait_readable(sock)
        return
    loop, number = asyncio.get_running_loop(), sock.fileno()
    news: asyncio.Future[None] = loop.create_future()
    loop.add_reader(number, _tell, news)
    try:
        await news
    finally:
        loop.remove_reader(number)


def _in_asyncio_task() -> bool:
    """Not so under trio, also where that runs as a guest of asyncio's loop."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def _tell(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)
