// All requests to the server: the session cookie, its CSRF token with every POST, errors as one line.

let csrf = null;
let askForLogin = null;
const SILENT = "the console is not responding: check that it is running";

// `ask(answer, error)` returns what a new session needs, `login`: a token, or a user name and a
// password. It also returns `done`, which closes its form.
export function onLoginNeeded(ask) { askForLogin = ask; }

async function session(login = {}, done = () => {}) {
  let response, answer;
  try {
    response = await fetch("/api/session", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(login),
    });
    answer = await response.json();
  } catch {
    throw new Error(SILENT);
  } finally {
    done();
  }
  if (response.ok) { csrf = answer.csrf; return answer.user; }
  if (!answer.needs && response.status !== 401 && response.status !== 429) throw new Error(answer.error);
  const isFirst = !Object.keys(login).length;
  const asked = await askForLogin(answer, isFirst ? "" : answer.error);
  return session(asked.login, asked.done);
}

// Signs in once, however many requests were refused.
let signing = null;
function signedIn(login) {
  signing ??= session(login).finally(() => { signing = null; });
  return signing;
}

// Returns the user who signed in, or null if nobody does. The URL that the console printed may have
// the token after its number sign.
export async function begin() {
  const match = /^#token=(.+)$/.exec(location.hash);
  if (match) history.replaceState(null, "", location.pathname);
  return signedIn(match ? { token: decodeURIComponent(match[1]) } : {});
}

async function ask(path, options, again = true) {
  let response;
  try {
    response = await fetch(path, options());
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(SILENT);
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({ error: response.statusText }));
  if (again && (response.status === 401 || (response.status === 403 && /CSRF/.test(answer.error)))) {
    const user = await signedIn();  // the session has ended, or the console was restarted
    if (user !== null) { location.reload(); return new Promise(() => {}); }  // perhaps another user
    return ask(path, options, false);
  }
  throw Object.assign(new Error(answer.error), { status: response.status });
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

// Sends an archive. What else there is to say is in the URL.
export async function upload(path, parameters, archive, signal = undefined) {
  const headers = () => ({ "content-type": "application/zip", "x-csrf-token": csrf });
  return (await ask(`${path}?${parameters}`, () => ({ method: "POST", headers: headers(), body: archive, signal }))).json();
}

// Reads one JSON value per line, until the signal aborts it.
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
