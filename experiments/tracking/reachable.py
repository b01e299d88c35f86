"""Check within seconds whether a tracking server answers. MLflow itself would retry for minutes."""

import http.client
import os
import socket
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from experiments.errors import UserError

CONNECT_S = 5.0  # timeout for a connection, in seconds
ANSWER_S = 10.0  # timeout for the first bytes of an answer, in seconds
RETRIES = 2  # MLflow's default of seven retries takes four minutes
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}


def refuse_unreachable(uri: str) -> None:
    """Raise UserError unless the server of an address accepts connections. An HTTP server must also send an answer.

    An address without a host (a file, a database file, a name that MLflow resolves) is not checked. An address that is
    reached through a proxy is not checked either.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(RETRIES))
    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    if scheme not in _PORTS or not parts.hostname:
        return
    try:
        port = parts.port or _PORTS[scheme]
    except ValueError:
        raise UserError(f"the port of {parts.hostname} is not a number from 0 to 65535.") from None
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place, by_http = f"{name}:{port}", scheme in ("http", "https")
    if by_http and scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.hostname):
        return  # only the proxy can reach the server
    try:
        socket.create_connection((parts.hostname, port), CONNECT_S).close()
    except (OSError, UnicodeError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        raise UserError(f"no server answers at {place} ({why}). Check the address, or start the server.") from None
    if by_http:
        _refuse_silent(f"{scheme}://{place}{parts.path}", place)


def _refuse_silent(address: str, place: str) -> None:
    """Raise UserError for a server that accepts connections but sends no answer."""
    try:
        urllib.request.build_opener(_NoRedirect).open(address, timeout=ANSWER_S).close()
    except urllib.error.HTTPError:
        return  # the server answers; the status does not matter, since only MLflow's client has the credentials
    except TimeoutError:
        pass
    except (OSError, ValueError, http.client.HTTPException) as error:
        if not isinstance(getattr(error, "reason", None), TimeoutError):
            return  # another error, such as an unknown certificate, which MLflow's client handles or reports
    else:
        return
    raise UserError(f"the server at {place} accepts connections, but sent no answer in {ANSWER_S:.0f} s.")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect handler that follows no redirects, so that no other server is contacted."""

    def redirect_request(self, *_: object) -> None:
        return None
