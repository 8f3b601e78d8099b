"""A page served on this machine alone, from memory."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def page_server(page: str, port: int) -> ThreadingHTTPServer:
    """A server of one page on 127.0.0.1; port 0 takes a free one. `serve_forever` starts it.

    Raises
    ------
    ValueError
        If the port is taken.
    """
    content = page.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not printed."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ValueError(f"port {port} cannot be used ({error.strerror}): give another --port") from error
