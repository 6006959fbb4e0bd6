"""HTTP for every application here: a small typed layer on httptools (llhttp) and uvloop.

    limits.py      what a client may cost: bytes, connections, seconds
    message.py     a request, an answer, and a refusal with its status
    app.py         routes, token, CORS, request ids, Server-Timing, access log
    protocol.py    one connection: what is parsed, what is too large, and what is written
    connections.py all of them: which are too slow or too many, and their end
    turn.py        a coroutine that answers a request
    addresses.py   how many connections one address may hold and open
    server.py      sockets, signals, start and drain
    notify.py      what systemd hears
    metrics.py     counters and histograms in Prometheus' text form
    files.py       pages and scripts from the package, with a policy that allows no other source

bench/serve.py measures what a request costs here, and with bare ASGI on uvicorn.
"""
