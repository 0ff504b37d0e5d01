"""labelwise serve MODEL..."""

from __future__ import annotations

from typing import Annotated

import typer


def serve_command(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Model folders or run folders; NAME=FOLDER gives a name.")
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on. 0.0.0.0: all of this machine.")] = "127.0.0.1",
    workers: Annotated[int, typer.Option(help="Processes, which share the mapped model files.")] = 1,
    api_keys: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="API keys, one per line. Also: LABELWISE_API_KEYS, separated by commas."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Let pages of this origin send requests. May be repeated.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Accept requests for this host name, as behind a proxy. May be repeated."),
    ] = None,
    max_request: Annotated[float, typer.Option(metavar="MB", help="Maximum size of a request.")] = 16,
    max_text: Annotated[int, typer.Option(help="Maximum number of characters of a text.")] = 1_000_000,
    max_documents: Annotated[int, typer.Option(help="Maximum number of documents in a request.")] = 1000,
    max_k: Annotated[int, typer.Option(help="Maximum number of labels per document.")] = 1000,
    max_bodies: Annotated[
        float | None,
        typer.Option(
            metavar="MB",
            help="Maximum size of all requests at a time, per worker; others get 503. Not given: 256, or --max-request "
            "if that is more.",
        ),
    ] = None,
    max_connections: Annotated[
        int, typer.Option(help="Maximum number of connections per worker; others get 503.")
    ] = 1000,
    queue: Annotated[int, typer.Option(help="Documents per model that may wait; others are answered with 429.")] = 2000,
    batch: Annotated[int, typer.Option(help="Documents of several requests computed together; 1: none.")] = 256,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Maximum time of a request.")] = 30,
    reload: Annotated[
        float, typer.Option(metavar="SECONDS", help="How often to look for changed model folders; 0: never.")
    ] = 2,
    language: Annotated[str, typer.Option(help="Language of the labels, for Annif's clients.")] = "und",
    uri_prefix: Annotated[
        str, typer.Option(metavar="URI", help="Put before names of labels that are no URIs, for Annif's clients.")
    ] = "",
    log_requests: Annotated[bool, typer.Option(help="Write a line per request to the log.")] = True,
    log_format: Annotated[
        str | None, typer.Option(help="Log as json or text. Not given: text on a terminal, else json.")
    ] = None,
) -> None:
    """Serve models over HTTP, with a page for people at /.

    The API is described at /docs; it includes Annif's. Without --host only programs on this machine can connect.
    A changed model folder is loaded again without dropping requests.
    """
    import sys

    from labelwise.errors import import_required

    import_required("labelwise serve", "serve", "fastapi", "uvicorn", "python_multipart")
    from labelwise.serve.server import serve
    from labelwise.serve.settings import named_models, settings_of_options

    terminal = sys.stderr is not None and sys.stderr.isatty()
    given = {
        "models": named_models(models), "host": host, "port": port, "workers": workers, "keys_file": api_keys,
        "allow_origins": tuple(allow_origin or ()), "allow_hosts": tuple(allow_host or ()),
        "max_request": round(max_request * 1e6), "max_text": max_text, "max_documents": max_documents,
        "max_k": max_k, "max_bodies": None if max_bodies is None else round(max_bodies * 1e6),
        "max_connections": max_connections, "queue": queue, "batch": batch, "timeout": timeout, "reload": reload,
        "language": language, "uri_prefix": uri_prefix, "log_requests": log_requests,
        "log_format": log_format or ("text" if terminal else "json"),
    }  # fmt: skip
    serve(settings_of_options(given))
