"""`penstock console`: runs the web console.

The console is a separate program that replaces this process, so that nothing of the command line
stays in memory.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Final

import typer

from penstock.cli.console_process import DEFAULT_PORT, PROGRAM
from penstock.cli.options import Bootstrap
from penstock.cli.session import DEFAULT_BOOTSTRAP, checked

TOKEN_VARIABLE: Final = "PENSTOCK_CONSOLE_TOKEN"  # noqa: S105 -- the name of it, not a token

_HELP = """Serve the web console of a cluster.

It shows topics, messages, groups, queues, brokers and pipelines.

It prints `console URL` when browsers can connect. By default only browsers on this machine can
connect. With any other --host, browsers need a token: give one with --token, or use the generated
one, which is printed with the URL.

With --sign-in, people sign in with their user names and passwords of the cluster, and each acts
with their own rights. The login of a profile is then not used. Otherwise everybody acts with the
login of the profile. With --mechanism OAUTHBEARER people sign in at an OpenID provider. If the
provider gave the console a secret, set PENSTOCK_CONSOLE_OAUTH_SECRET.

\b
Examples:
  penstock console
  penstock console --port 8100 --read-only
  penstock console --bootstrap kafka1:9092
  penstock console --host 0.0.0.0 --allow-host console.example.org
  penstock console --bootstrap profile:prod --sign-in
"""


_Issuer = Annotated[str, typer.Option("--oauth-issuer", metavar="URL", help="The OpenID provider.")]
_ClientId = Annotated[
    str,
    typer.Option(
        "--oauth-client-id",
        metavar="ID",
        help="The client id of this console at the OpenID provider.",
    ),
]
_Scope = Annotated[
    str,
    typer.Option(
        "--oauth-scope", metavar="TEXT", help="The scopes to request from the OpenID provider."
    ),
]
_Token = Annotated[
    str,
    typer.Option(
        "--token",
        envvar=TOKEN_VARIABLE,
        metavar="TEXT",
        help="The token that browsers must give.",
    ),
]
_Mechanism = Annotated[
    str,
    typer.Option(
        "--mechanism",
        metavar="NAMES",
        help="How people sign in: one or more of SCRAM-SHA-512, SCRAM-SHA-256, PLAIN and "
        "OAUTHBEARER.",
    ),
]
_Certificate = Annotated[
    str,
    typer.Option(
        "--tls-certificate",
        metavar="FILE",
        help="PEM file with the certificate; turns https on.",
    ),
]
_Key = Annotated[
    str,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        help="The PEM file with the key, if the certificate's file has none.",
    ),
]


def register(root: typer.Typer) -> None:
    root.command("console", help=_HELP)(console)


def console(
    *,
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", min=0, max=65535, metavar="P", help="Listen port; 0: any free port."
        ),
    ] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option("--host", metavar="H", help="Listen address; 0.0.0.0: all interfaces.")
    ] = "127.0.0.1",
    read_only: Annotated[bool, typer.Option("--read-only", help="Do not allow changes.")] = False,
    token: _Token = "",
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Allow this host name in URLs."),
    ] = None,
    sign_in: Annotated[
        bool, typer.Option("--sign-in", help="Require people to sign in as users of the cluster.")
    ] = False,
    mechanism: _Mechanism = "SCRAM-SHA-512,SCRAM-SHA-256",
    oauth_issuer: _Issuer = "",
    oauth_client_id: _ClientId = "",
    oauth_scope: _Scope = "openid",
    tls_certificate: _Certificate = "",
    tls_key: _Key = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    command = [*PROGRAM, "--bootstrap", checked(bootstrap), "--host", host, "--port", str(port)]
    command += ["--read-only"] if read_only else []
    for name in allow_host or ():
        command += ["--allow-host", name]
    for name in mechanism.upper().split(",") if sign_in else ():
        command += ["--sign-in", name.strip()]
    given = {
        "--oauth-issuer": oauth_issuer,
        "--oauth-client-id": oauth_client_id,
        "--oauth-scope": oauth_scope,
        "--tls-certificate": tls_certificate,
        "--tls-key": tls_key,
    }
    for option, text in given.items():
        command += [option, text] if text else []
    sys.stdout.flush()
    os.execve(command[0], command, {**os.environ, TOKEN_VARIABLE: token})  # noqa: S606 -- our own
