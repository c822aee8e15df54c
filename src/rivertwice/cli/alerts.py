"""alerts: what fires now, who was told, whether a route works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rivertwice.cli import options
from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import DEFECT, Frame, FriendlyGroup, as_table, example, pass_frame
from rivertwice.cli.options import reason_option
from rivertwice.core import RequestError, ServiceError

if TYPE_CHECKING:
    from rivertwice.agent import Alert


@click.group(
    cls=FriendlyGroup,
    invoke_without_command=True,
    epilog=example("rivertwice alerts", "rivertwice alerts --check", "rivertwice alerts test --route ops"),
)
@click.option("--check", is_flag=True, help="Exit 3 while anything fires.")
@click.pass_context
def alerts(ctx: click.Context, check: bool) -> None:
    """Show what fires now, and the next command.

    It says since when, what it means, and how the routes do. Routes (webhook, Slack, e-mail, file) are configured in alerts.yaml of the project; `rivertwice docs howto-watch` has all of it.
    """
    if ctx.invoked_subcommand is not None:
        return
    from rivertwice.agent import alerts_of, body_of, load_routes

    frame: Frame = ctx.obj
    settings = frame.settings
    config, state = load_routes(settings), alerts_of(settings).state()
    firing = state.open()
    bodies = [{**body_of(settings, alert), "told": sorted(alert.sent)} for alert in firing]
    routes = config.view(state)
    headers = ("route", "to", "severities", "waiting", "failures", "error")
    rows = [
        (each.route, each.to, ", ".join(each.severities), each.waiting, each.failures, each.error) for each in routes
    ]
    none = "no route is configured, so alerts are not sent; `rivertwice docs howto-watch` shows how to write one"
    routes_text = as_table(headers, rows) if routes else none
    frame.emit({"firing": bodies, "routes": routes}, lambda: _text(firing, bodies, routes_text))
    if check and firing:
        raise SystemExit(DEFECT)


@alerts.command("test", epilog=example("rivertwice alerts test", "rivertwice alerts test --route ops"))
@click.option("--route", "name", metavar="NAME", shell_complete=options.routes, help="Only this one; default: all.")
@changes_unasked("a message to people", because="that is what is asked for")
@pass_frame
def alerts_test(frame: Frame, name: str | None) -> None:
    """Send a test message to the routes.

    The result of each is shown. Exit 1 if a route did not take it.
    """
    from rivertwice.agent import Alert, AlertCause, AlertSeverity, Sender, config_file, load_routes
    from rivertwice.core import utc_now

    config = load_routes(frame.settings)
    routes = {key: route for key, route in config.routes.items() if name in (None, key)}
    if not routes:
        configured = ", ".join(config.routes) or "none"
        what = f"no route {name!r}" if name else "no route is configured"
        message = f"{what} in {config_file(frame.settings)} (configured: {configured}); `rivertwice docs howto-watch` shows how to write one"
        raise RequestError(message)
    now = utc_now()
    text = "this is a test of a route of alerts, asked for by `rivertwice alerts test`; nothing is wrong"
    alert = Alert(AlertCause("", "test"), AlertSeverity.WARNING, text, "test", now, now)
    results = Sender(frame.settings).tell(alert, routes)
    rows = [(key, routes[key].to, "taken" if error is None else error) for key, error in results.items()]
    value = [
        {"route": key, "to": routes[key].to, "taken": error is None, "error": error} for key, error in results.items()
    ]
    frame.emit(value, lambda: as_table(("route", "to", "result"), rows))
    failed = [key for key, error in results.items() if error is not None]
    if failed:
        message = f"{len(failed)} of {len(results)} routes did not take the test message: {', '.join(failed)}; the table says why"
        raise ServiceError(message)


@alerts.command(
    "acknowledge",
    epilog=example("rivertwice alerts acknowledge al-1f0c22d38b1a9e07 --reason 'the source is loaded again'"),
)
@click.argument("alert_id", metavar="ID")
@reason_option()
@changes_unasked("an acknowledgement", because="the alert still fires")
@pass_frame
def alerts_acknowledge(frame: Frame, alert_id: str, reason: str | None) -> None:
    """Say that you know of an alert, and why.

    It still fires; the cockpit shows your name and the reason. The first who does so stays.
    """
    import getpass

    from rivertwice.agent import alerts_of, body_of
    from rivertwice.core import utc_now

    if not reason:
        message = "give --reason: it is recorded with your name"
        raise click.UsageError(message)
    noted = alerts_of(frame.settings).acknowledge(alert_id, getpass.getuser(), reason, utc_now())
    frame.emit(
        body_of(frame.settings, noted),
        f"{noted.id} is acknowledged by {noted.acknowledged_by}: {noted.acknowledgement}",
    )


def _known(alert: Alert) -> str:
    if not alert.acknowledged_by:
        return ""
    return f"\n  acknowledged by {alert.acknowledged_by}: {alert.acknowledgement}"


def _text(firing: list[Alert], bodies: list[dict[str, Any]], routes: str) -> str:
    from rivertwice.agent import title_of

    parts = []
    for alert, body in zip(firing, bodies, strict=True):
        over = "" if alert.resolved_at is None else "\n  over, not yet for long enough to say so"
        parts.append(
            f"{title_of(alert)}, {alert.id}\n  since {body['since']}: {body['message']}\n  served numbers: {body['meaning']}\n"
            f"  next: {body['next']}\n  told: {', '.join(body['told']) or 'no receiver yet'}{_known(alert)}{over}"
        )
    parts.append(routes)
    return "\n".join(parts if firing else ["nothing fires", *parts])
