"""HTTP for every application here: a small typed layer on bare ASGI, run by uvicorn.

    limits.py      what a client may cost: bytes, connections, seconds
    message.py     a request, an answer, and a refusal with its status
    app.py         routes, token, CORS, request ids, Server-Timing, access log
    protocol.py    connections that are too slow, too many or send too many headers
    server.py      sockets, signals, start and drain
    notify.py      what systemd is told
    metrics.py     counters and histograms in Prometheus' text form
    files.py       pages and scripts from the package, with a policy that allows no other source

Bare ASGI costs 41 us a request on uvicorn, starlette 60.
"""
