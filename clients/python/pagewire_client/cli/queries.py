"""``pagewire models``, ``health``, ``explain``, ``drain``, ``fetch`` and ``version``."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import grpc
import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table

from ..errors import NotFoundError
from ..results import HealthStatus
from . import arguments as arg
from .access import open_client
from .failures import EXIT_FAILED
from .models import local_model
from .output import plain, print_json, printable

models = typer.Typer(invoke_without_command=True)


@models.callback()
def list_models(context: typer.Context, target: arg.Target = arg.TARGET_DEFAULT, json: arg.Json = False) -> None:
    """List the served models; `inspect` tells all of one."""
    if context.invoked_subcommand is not None:
        return
    with open_client(target) as client:
        served = client.models()
    if json:
        for model in served:
            print_json(model)
        return
    # Short heads, so that the embedded model's row fits a terminal of 80 columns.
    table = Table(Column("name", overflow="fold"), "architecture", "dtype", "max len", "page", box=box.SIMPLE)
    for model in served:
        lengths = (str(model.max_model_len), str(model.page_size))
        table.add_row(model.name, model.architecture, model.dtype, *lengths)
    Console(highlight=False).print(table if served else "no model is served: no worker has joined")


@models.command()
def inspect(
    name: Annotated[str, typer.Argument(help="A served name; without it, the one that is served.")] = "",
    target: arg.Target = arg.TARGET_DEFAULT,
    json: arg.Json = False,
) -> None:
    """Tell all that a server says of a model: limits, types, capabilities, versions."""
    with open_client(target) as client:
        model = client.model(name)
    if json:
        print_json(model)
        return
    table = Table("", Column(overflow="fold"), box=box.SIMPLE, show_header=False)
    for field, value in plain(model).items():
        shown = ", ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else value
        table.add_row(field.replace("_", " "), printable(shown) or "none")
    Console(highlight=False, markup=False).print(table)


def health(
    target: arg.Target = arg.TARGET_DEFAULT,
    json: arg.Json = False,
    service: Annotated[str, typer.Option(help="A service's name; empty asks for the whole server.")] = "",
) -> None:
    """Ask whether a server can serve; exit code 0 only if it can."""
    with open_client(target) as client:
        try:
            status = client.health(service, timeout=5.0)
        except NotFoundError as error:
            raise NotFoundError(f"the server has no service {service!r}", code=error.code) from None
    if json:
        print_json({}, target=target, service=service, status=status.name)
    else:
        print(status.name)
    if status is not HealthStatus.SERVING:
        raise typer.Exit(EXIT_FAILED)


def explain(
    request_id: Annotated[str, typer.Argument(help="The request, running or ended a while ago.")],
    target: arg.InternalTarget = arg.INTERNAL_TARGET_DEFAULT,
    json: arg.Json = False,
) -> None:
    """Tell step by step what the scheduler decided about a request, and why."""
    with open_client(target, is_internal=True) as client:
        decisions = client.explain(request_id)
    for decision in decisions:
        if json:
            print_json(decision)
        else:
            step = f"step {decision.step_id}" if decision.step_id else ""
            print(f"{decision.at_seconds:10.4f} s  {step:<12}  {printable(decision.text)}")


def drain(
    target: arg.InternalTarget = arg.INTERNAL_TARGET_DEFAULT,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="Time for what runs (default: as the server is configured).")
    ] = None,
) -> None:
    """Have a server refuse new requests, finish what runs, and end."""
    with open_client(target, is_internal=True) as client:
        client.drain(seconds)


def fetch(
    model: Annotated[str | None, typer.Argument(help="A hub id; without it, the embedded model.")] = None,
    json: arg.Json = False,
) -> None:
    """Fetch a model into the cache and print its path."""
    path = local_model(model)
    if json:
        print_json({}, path=path)
    else:
        print(path)


def leave_with_version(asked: bool) -> None:
    """`pagewire --version`."""
    if asked:
        show_version()
        raise typer.Exit


def show_version(json: arg.Json = False) -> None:
    """Print versions."""
    try:
        own = version("pagewire")
    except PackageNotFoundError:
        own = "unknown (not installed)"
    versions = {"pagewire": own, "grpcio": grpc.__version__, "python": platform.python_version()}
    if json:
        print_json({}, **versions)
    else:
        print("\n".join(f"{name} {number}" for name, number in versions.items()))
