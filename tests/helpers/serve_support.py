"""A server over the tiny reader, in a thread of the test process, on a free port of this machine."""

import threading
import time
from contextlib import contextmanager


@contextmanager
def serving(reader, **settings):
    """Run the server. Yield an httpx client and the application."""
    import httpx
    import uvicorn

    from fastreader.integrations.serve.app import create_app
    from fastreader.integrations.serve.listening import listening
    from fastreader.integrations.serve.settings import ServerSettings

    app = create_app(reader, ServerSettings(**settings))
    own = listening(ServerSettings(**settings))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", **own))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
