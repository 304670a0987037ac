"""The console: a cluster in a browser, served from the package.

    static/       one page, hand-written ES modules and CSS; nothing is built or fetched elsewhere
    web.py        HTTP: routes, static files, streams, errors as one line
    guard.py      who may ask: Host, Origin, session, CSRF token, headers of every answer
    watch.py      looks at the cluster all the time; what it saw last is a `Picture`
    services      topics, messages, groups, brokers, pipelines: what a page shows or an action does
    link.py       the way to the cluster; whoever wants to change something must ask it, and in a
                  read-only console is refused there, whichever way the request came
    pure          problems, filters, shown, plans: values in, values out

It speaks to the cluster through `penstock.client` only, as anybody would. It runs in a process of
its own, so a page with ten thousand topics costs the broker's event loop nothing.

The server is Starlette on uvicorn: well kept, typed, small, pure Python, and so installable
wherever Penstock is; a hand-written HTTP server would be ours to keep safe.
"""
