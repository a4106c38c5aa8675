"""Puts the commands together; maps errors to one line and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import PagewireError
from . import access, bench, demo, gateway, generation, prefixes, queries, serving
from .failures import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, error_line, exit_code
from .flags import Role, help_text
from .top import top

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


class _Group(TyperGroup):
    """Runs a command; no traceback leaves it for an error that has a name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, access.in_front(args, _CALLING))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PagewireError as error:
            print(error_line(error), file=sys.stderr)
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                print(file=sys.stderr)  # the shell's prompt gets a line of its own, below the text that was cut off
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except UnicodeError as error:  # of an argument or stdin that is no UTF-8, or a terminal that knows few letters
            print(f"error: text that cannot be read or written: {error}", file=sys.stderr)
            raise typer.Exit(EXIT_USAGE) from None
        except OSError as error:
            # Our output cannot be written: a full disk, or a reader that went away (`| head`), which needs no word.
            if not isinstance(error, BrokenPipeError):
                print(f"error: {error}", file=sys.stderr)
            # Leave nothing for the interpreter to flush into it.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(EXIT_FAILED) from None


_CALLING = frozenset(
    (
        "generate",
        "chat",
        "models",
        "health",
        "explain",
        "quote",
        "pin",
        "pins",
        "unpin",
        "drain",
        "top",
        "bench",
        "gateway",
    )
)
"""The commands that call a server."""

app = typer.Typer(cls=_Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def pagewire(
    tls: access.UseTls = False,
    tls_ca: access.TlsCa = None,
    tls_cert: access.TlsCert = None,
    tls_key: access.TlsKey = None,
    tls_server_name: access.TlsName = None,
    token_file: access.TokenFile = None,
    tenant: access.Tenant = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=queries.leave_with_version, help="Print versions.")
    ] = False,
) -> None:
    """LLM inference over gRPC: serve a model, or talk to a server."""
    shown = access.read_access(
        tls=tls,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_server_name=tls_server_name,
        token_file=token_file,
        tenant=tenant,
    )
    access.ACCESS.set(shown)


app.command(context_settings=_PASS_THROUGH, epilog=help_text(*Role))(serving.serve)
app.command(context_settings=_PASS_THROUGH, epilog=help_text(Role.SCHEDULER))(serving.scheduler)
app.command(context_settings=_PASS_THROUGH, epilog=help_text(Role.WORKER))(serving.worker)
app.command()(generation.generate)
app.command()(generation.chat)
app.add_typer(queries.models, name="models")
app.command()(queries.health)
app.command()(queries.explain)
app.command()(prefixes.quote)
app.command()(prefixes.pin)
app.command()(prefixes.pins)
app.command()(prefixes.unpin)
app.command()(queries.drain)
app.command()(top)
app.command()(bench.bench)
app.command()(queries.fetch)
app.command()(gateway.gateway)
app.command("version")(queries.show_version)
app.command(context_settings=_PASS_THROUGH, add_help_option=False)(serving.replay)
app.command(context_settings=_PASS_THROUGH, add_help_option=False)(serving.quantize)
app.command(context_settings=_PASS_THROUGH, add_help_option=False)(serving.keys)
app.command()(demo.demo)
