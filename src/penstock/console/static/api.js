// The one way to the server: a session by cookie, its CSRF token with every post, errors as one line.

let csrf = null;
let askForToken = null;

export function onTokenNeeded(ask) { askForToken = ask; }

async function session(token = null) {
  const response = await fetch("/api/session", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(token === null ? {} : { token }),
  });
  const answer = await response.json();
  if (response.ok) { csrf = answer.csrf; return; }
  if (response.status !== 401 && response.status !== 429) throw new Error(answer.error);
  await session(await askForToken(token === null ? "" : answer.error));
}

// The token may stand behind the number sign of the address, where the console printed it.
export async function begin() {
  const match = /^#token=(.+)$/.exec(location.hash);
  if (match) history.replaceState(null, "", location.pathname);
  await session(match ? decodeURIComponent(match[1]) : null);
}

async function ask(path, options, again = true) {
  let response;
  try {
    response = await fetch(path, options());
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the console does not answer: is it still running?");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({ error: response.statusText }));
  if (again && (response.status === 401 || (response.status === 403 && /CSRF/.test(answer.error)))) {
    await session();  // the console was started anew
    return ask(path, options, false);
  }
  throw new Error(answer.error);
}

export async function get(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(parameters).toString();
  return (await ask(query ? `${path}?${query}` : path, () => ({ signal }))).json();
}

function posting(body, signal) {
  return () => ({
    method: "POST",
    headers: { "content-type": "application/json", "x-csrf-token": csrf },
    body: JSON.stringify(body),
    signal,
  });
}

export async function post(path, body = {}, signal = undefined) {
  return (await ask(path, posting(body, signal))).json();
}

// One JSON value per line, for as long as the signal lets it.
export async function stream(path, body, signal, onValue) {
  const response = await ask(path, posting(body, signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) onValue(JSON.parse(line));
  }
}
