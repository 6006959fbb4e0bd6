"""One request apart from the device: what is made of its items before, of the results after, and who waits for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from anynpu.apps.serve.base import NO_VECTORS, Answer, Expired, Item, Limits, Outcome, Request, Then, TooLarge
from anynpu.apps.serve.lane import Ticket
from anynpu.apps.serve.program import Program, Row
from anynpu.apps.serve.served import Order, device_error
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.tasks.text import Tokens


async def awaited(
    ask: Callable[[Request, Then], Order | None], request: Request, loop: asyncio.AbstractEventLoop
) -> Answer:
    """Returns the outcome of `ask` as a coroutine does; a request that nobody awaits any more is given up."""
    future: asyncio.Future[Answer] = loop.create_future()

    def then(outcome: Outcome) -> None:
        if future.done():
            return
        if isinstance(outcome, Answer):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    order = ask(request, then)
    try:
        return await future
    finally:
        if order is not None:
            order.cancel()


def prepared(order: Order, program: Program, limits: Limits) -> list[Row]:
    """Returns the items of a request made ready to run."""
    request, began = order.request, time.monotonic()
    if began > request.deadline or request.gone():
        raise Expired("the deadline passed before the request was computed")
    rows, many = [], len(request.items) > 1
    for number, item in enumerate(request.items):
        rows.append(program.prepare(item, request.options, limits, f"item {number}" if many else "the item"))
    order.prepared += time.monotonic() - began
    return rows


def finished(ticket: Ticket, name: str) -> Answer | AnyNpuError:
    """Returns what the results of a ticket say, as the model of this name answers."""
    order: Order = ticket.order
    version, began = order.version, time.monotonic()
    loaded = version.loaded
    program = loaded.raw if ticket.rows[0].group == "raw" else loaded.program
    try:
        rows = program.finish(ticket.rows, ticket.results, order.request.options)
    except Exception as error:
        return device_error(error)
    stages = {
        "queue": ticket.taken - ticket.accepted,
        "prepare": order.prepared,
        "run": ticket.run_s,
        "finish": time.monotonic() - began,
    }
    return Answer(
        name,
        version.info.version,
        version.info.device,
        NO_VECTORS if rows.vectors is None else rows.vectors,
        detections=rows.detections,
        classes=rows.classes,
        tensors=rows.tensors,
        tokens=sum(row.tokens for row in ticket.rows),
        truncated=sum(row.truncated for row in ticket.rows),
        sizes=tuple(row.size for row in ticket.rows) if ticket.rows[0].size != (0, 0) else (),
        batch=ticket.batch,
        fallback=version.twin,
        stages=stages,
    )


def token_counts(tokens: Tokens, items: Sequence[Item], limits: Limits) -> tuple[int, ...]:
    """Returns how many tokens every text has before it is cut."""
    long = next((item for item in items if len(item) > limits.characters), None)
    if long is not None:
        raise TooLarge(f"a text has {len(long)} characters, at most {limits.characters} are taken")

    def count(item: Item) -> int:
        if not isinstance(item, str | tuple):
            raise ConfigError("only texts have tokens")
        return len(tokens.ids(item) if isinstance(item, str) else tokens.framed(item))

    return tuple(map(count, items))
