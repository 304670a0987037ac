// Elements from values. Content only ever becomes text: nothing here, or in any other module, parses
// HTML, so what a message holds cannot become part of the page.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, String(value));
  }
  put(element, children);
  return element;
}

function put(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  put(element, children);
}

export function table(columns, rows, empty) {
  if (!rows.length) return h("p", { class: "soft" }, empty || "nothing here yet");
  const align = (column) => (column.startsWith(">") ? "right" : "");
  const head = columns.map((column) => h("th", { class: align(column), scope: "col" }, column.replace(">", "")));
  const body = rows.map((row) =>
    h("tr", {}, row.map((cell, at) => h("td", { class: align(columns[at]) }, cell ?? "–"))));
  return h("div", { class: "scroll" },
    h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

export function toast(text, bad = false) {
  const box = h("div", { class: bad ? "toast bad" : "toast" }, text);
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), bad ? 9000 : 4000);
}

// A form in a dialog. `send(values, signal)` does it and may throw; the dialog then stays and says why.
// With `look`, the first press of the button only shows what would happen: `look(values, signal)` returns
// its `content`, and the reason if it is `refused`. A change of a field goes back to that, and so does a
// conflict: somebody else made a change. The signal is aborted when the dialog is closed.
export function ask(title, fields, { button = "OK", danger = false, send, note, look = null, lookButton = "Show" } = {}) {
  const shown = h("div", { class: "plan", role: "status" });
  const closing = new AbortController();
  let seen = !look;
  let edits = 0;
  const error = h("p", { class: "error", role: "alert" });
  const inputs = {};
  const rows = fields.map((field) => {
    const { name, label, kind = "text", options, value = "", ...rest } = { "aria-label": field.label, ...field };
    let input;
    if (options) {
      input = h("select", { name, ...rest }, options.map(([key, text]) => h("option", { value: key }, text)));
      input.value = value === "" ? options[0][0] : value;
    } else if (kind === "textarea") input = h("textarea", { name, spellcheck: "false", ...rest }, value);
    else if (kind === "checkbox") input = h("input", { type: kind, name, checked: Boolean(value), ...rest });
    else input = h("input", { type: kind, name, value, autocomplete: "off", ...rest });
    inputs[name] = input;
    return kind === "checkbox"
      ? h("label", { class: "inline" }, input, label) : h("label", {}, label, input);
  });
  const go = h("button", { class: danger ? "danger" : "primary", type: "submit" }, look ? lookButton : button);
  const form = h("form", {}, h("h2", {}, title), note ? h("p", { class: "soft" }, note) : null, rows, look ? shown : null, error,
    h("div", { class: "bar" },
      h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), go));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const values = {};
    for (const [name, input] of Object.entries(inputs)) {
      values[name] = input.type === "checkbox" ? input.checked : input.type === "file" ? [...input.files] : input.value;
    }
    go.disabled = true;
    error.textContent = "";
    const before = edits;
    try {
      if (!seen) {
        const found = await look(values, closing.signal);
        if (edits !== before) return;
        fill(shown, found.content);
        if (found.refused) throw new Error(found.refused);
        seen = true;
        go.textContent = button;
        return;
      }
      await send(values, closing.signal);
      dialog.close();
    } catch (failure) {
      if (failure.name === "AbortError") return;
      if (failure.status === 409) again();
      error.textContent = failure.message;
    } finally {
      go.disabled = false;
    }
  });
  const again = () => {
    if (!look) return;
    edits += 1;
    seen = false;
    go.textContent = lookButton;
    error.textContent = "";
    fill(shown);
  };
  form.addEventListener("input", again);
  const dialog = h("dialog", {}, form);
  dialog.addEventListener("close", () => { closing.abort(); dialog.remove(); });
  document.body.append(dialog);
  dialog.showModal();
  return inputs;
}

export function whole(text, name) {
  if (!/^-?\d{1,18}$/.test(text.trim())) throw new Error(`${name} must be a whole number`);
  return Number(text);
}

export function size(bytes) {
  if (bytes === null || bytes === undefined || bytes < 0) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) { bytes /= 1024; at += 1; }
  return `${at && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[at]}`;
}

export function count(number) {
  return number === null || number === undefined ? "–" : Number(number).toLocaleString("en-US");
}

export function rate(number) {
  return `${number >= 100 ? count(Math.round(number)) : (Math.round(number * 10) / 10)}/s`;
}

export function time(ms) {
  return ms === null || ms === undefined || ms < 0 ? "–" : new Date(ms).toISOString().replace("T", " ").slice(0, 23);
}

// For a POSIX shell.
export function quoted(word) {
  return /^[\w.,:/@%+=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

// What a message holds, as text.
export function content(shown) { return shown.kind === "null" ? "(null)" : shown.cut ? `${shown.text}…` : shown.text; }

// Calls `load` at once and then at regular intervals while the page is visible. It waits for the last
// call to end: if answers took longer than an interval, each would be outdated by the next request.
// Returns a function that ends it.
export function every(milliseconds, load) {
  let waiting = false;
  const refresh = async () => {
    if (waiting) return;
    waiting = true;
    try { await load(); } finally { waiting = false; }
  };
  refresh();
  const timer = setInterval(() => { if (!document.hidden) refresh(); }, milliseconds);
  return () => clearInterval(timer);
}

export function later(milliseconds, work) {
  let timer = 0;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => work(...given), milliseconds); };
}
