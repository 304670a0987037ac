"""The web console: shows and manages a cluster in a browser.

    static/       one page, hand-written ES modules and CSS; no build step, no other servers
    web.py        HTTP: sessions, static files, errors as one line; routes.py, access_routes.py
                  and deployment_routes.py have what each route does
    guard.py      access control: Host, Origin, cookie, CSRF token, headers of every answer
    sign_in.py    how a browser gets a session; oauth.py asks an OpenID provider
    sessions.py   the sessions of users; each has a workspace.py of its own, with connections
                  that are logged in as the user
    watch.py      polls the cluster all the time and keeps the result in a `Picture`
    services      topics, messages, groups, brokers, pipelines, deployments, access, audit: what
                  pages show and actions do
    link.py       the connection to the cluster; every change goes through it, so a read-only
                  console refuses changes there, whichever route the request took
    pure          picture, problems, deployment_records, filters, shown: values in, values out

The console uses only `penstock.client`, as any other program would, and the records of deployed
pipelines in `penstock.spark.deployments`, which need no Spark. It runs as a separate process,
so a page with ten thousand topics takes no time from a broker's event loop.

The server is Starlette on uvicorn: well maintained, typed, small and pure Python, so it can be
installed wherever Penstock can. A hand-written HTTP server would be ours to keep secure.
"""
