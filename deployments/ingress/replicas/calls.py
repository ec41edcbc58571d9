"""Calls to one replica whose answer can be done without."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

_LOG = logging.getLogger(__name__)
_WAIT_S = 2.0

Answer = TypeVar("Answer")


async def answer_of(replica: str, call: Awaitable[Answer]) -> Answer | None:
    """None if it does not answer in time."""
    try:
        async with asyncio.timeout(_WAIT_S):
            return await call
    except Exception as error:  # the replica is lost, or slow
        _LOG.warning("%s does not answer: %s", replica, error)
        return None
