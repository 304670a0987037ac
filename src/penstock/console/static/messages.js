// The messages of a topic: reads them by offset or time, follows them live, filters, sends and replays.
import { post, stream } from "./api.js";
import { ask, content, count, fill, h, quoted, size, time, toast, whole } from "./dom.js";

const LIVE_ROWS = 300;
const FILTER_HELP = "error   |   value.user.id = 42   |   key ~ \"ann\" and not header.trace-id   |   offset >= 100 or value.status != \"ok\"";

export function messages(body, topic) {
  const path = encodeURIComponent(topic.name);
  const pick = (name, label, options, extra = {}) => h("label", {}, label, h("select", { name, "aria-label": label, ...extra }, options.map(([key, text]) => h("option", { value: key }, text))));
  const partition = pick("partition", "Partition", [["", "all"], ...topic.partition_rows.map((each) => [String(each.partition), String(each.partition)])]);
  const start = pick("start", "Start", [["newest", "newest first"], ["oldest", "oldest"], ["offset", "at an offset"], ["time", "at a time (UTC)"]]);
  const place = h("input", { name: "place", "aria-label": "Start position", placeholder: "offset", hidden: true });
  const format = pick("format", "Show as", [["auto", "detect"], ["json", "JSON"], ["text", "text"], ["hex", "hex"], ["avro", "Avro"]]);
  const filter = h("input", { type: "search", name: "filter", placeholder: "Filter ( / ):  value.status = \"failed\" and key", title: FILTER_HELP, spellcheck: "false" });
  const schema = h("textarea", { name: "schema", "aria-label": "Avro schema", placeholder: "Avro schema, as JSON", hidden: true });
  const more = h("button", { type: "button", hidden: true, onclick: () => browse(cursor) }, "More");
  const tail = h("button", { type: "button", onclick: follow, "aria-pressed": "false" }, "Live");
  const list = h("div", { id: "messages" });
  const note = h("p", { class: "soft", role: "status", id: "messages-note" });
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); browse(); } },
    h("div", { class: "bar" }, partition, start, place, format,
      h("label", { class: "grow" }, "Filter", filter), h("button", { class: "primary", type: "submit" }, "Read"), tail),
    schema);
  fill(body, h("div", { class: "bar" },
    h("button", { onclick: () => produce() }, "Produce"), h("button", { onclick: replay }, "Replay to another topic"),
    h("button", { onclick: () => copy(command()) }, "Copy as command")), form, note, list, more);
  const field = (label) => label.querySelector("select");
  field(start).addEventListener("change", () => {
    const kind = field(start).value;
    place.hidden = kind !== "offset" && kind !== "time";
    place.placeholder = kind === "time" ? "2026-01-31 12:00" : "offset";
  });
  field(format).addEventListener("change", () => { schema.hidden = field(format).value !== "avro"; });
  let cursor = null;
  let reading = new AbortController();

  function value() {
    const kind = field(start).value;
    if (kind === "offset") return whole(place.value, "the offset");
    if (kind !== "time") return 0;
    const text = place.value.trim();
    const ms = /^\d{12,14}$/.test(text) ? Number(text) : Date.parse(`${text.replace(" ", "T")}${/Z|[+-]\d\d:?\d\d$/.test(text) ? "" : text.includes(":") ? "Z" : "T00:00Z"}`);
    if (Number.isNaN(ms)) throw new Error("write the time as 2026-01-31 12:00");
    return ms;
  }

  function shape() {
    const chosen = field(format).value;
    return { format: chosen, filter: filter.value, partitions: field(partition).value === "" ? [] : [Number(field(partition).value)],
      ...(chosen === "avro" ? { avro_schema: schema.value } : {}) };
  }

  function stop() {
    reading.abort();
    reading = new AbortController();
    tail.setAttribute("aria-pressed", "false");
    tail.textContent = "Live";
  }

  async function browse(from = null) {
    stop();
    if (from === null) fill(list);
    note.textContent = "reading";
    try {
      const found = await post(`/api/read/messages/${path}`, { ...shape(), start: field(start).value, value: value(), limit: 50, cursor: from }, reading.signal);
      cursor = found.cursor;
      more.hidden = found.at_end;
      for (const record of found.records) list.append(message(record));
      note.textContent = `${count(list.childElementCount)} shown, ${count(found.scanned)} read${found.at_end ? "; end of the log" : ""}`;
    } catch (error) {
      if (error.name !== "AbortError") { note.textContent = ""; fill(list, h("p", { class: "error" }, error.message)); more.hidden = true; }
    }
  }

  async function follow() {
    if (tail.getAttribute("aria-pressed") === "true") { stop(); note.textContent = "stopped"; return; }
    stop();
    tail.setAttribute("aria-pressed", "true");
    tail.textContent = "Stop";
    fill(list);
    more.hidden = true;
    note.textContent = "connecting";
    try {
      await stream(`/api/read/tail/${path}`, shape(), reading.signal, (found) => {
        if (found.error) throw new Error(found.error);
        note.textContent = "live: new messages appear here";
        for (const record of found.records) list.prepend(message(record));
        while (list.childElementCount > LIVE_ROWS) list.lastElementChild.remove();
      });
      throw new Error("the live view ended: start it again");
    } catch (error) {
      if (error.name !== "AbortError") { stop(); note.textContent = error.message; }
    }
  }

  function message(record) {
    const key = h("pre", {}, content(record.key));
    const text = h("pre", { class: "value" }, content(record.value));
    const row = h("article", { class: "message", "data-offset": record.offset },
      h("div", { class: "meta" }, h("span", {}, `partition ${record.partition}`), h("b", {}, `offset ${count(record.offset)}`),
        h("span", {}, time(record.timestamp)), h("span", { class: "tag" }, record.value.kind), h("span", {}, size(record.value.bytes)),
        h("span", { class: "small" },
          record.value.cut || record.value.kind === "json" ? h("button", { onclick: () => all(record, text) }, record.value.cut ? "Show all" : "Indent") : null, " ",
          h("button", { onclick: () => copy(one(record)) }, "Copy command"), " ",
          h("button", { onclick: () => produce(record) }, "Send again"), " ",
          h("a", { href: `/api/topics/${path}/raw?partition=${record.partition}&offset=${record.offset}`, download: "" }, "Download"))),
      record.key.kind === "null" ? null : h("div", { class: "key" }, h("span", { class: "soft" }, "key"), key), text,
      record.headers.length ? h("div", { class: "meta" }, record.headers.map(([name, header]) => h("span", { class: "tag" }, `${name}: ${content(header)}`))) : null);
    return row;
  }

  async function all(record, text) {
    try {
      const found = await post(`/api/read/message/${path}`, { ...shape(), partition: record.partition, offset: record.offset });
      text.textContent = content(found.value);
    } catch (error) { toast(error.message, true); }
  }

  const broker = () => document.body.dataset.bootstrap || "localhost:9092";

  function command() {
    const kind = field(start).value;
    const words = ["penstock", "consume", topic.name, "-b", broker()];
    if (field(partition).value !== "") words.push("--partition", field(partition).value);
    if (kind === "offset") words.push("--offset", place.value.trim() || "0");
    else if (kind === "time") words.push("--since", place.value.trim());
    else if (kind === "oldest") words.push("--from-beginning");
    else words.push("--offset", "-50");
    return words.map(quoted).join(" ");
  }

  function one(record) {
    return ["penstock", "consume", topic.name, "-b", broker(), "--partition", String(record.partition), "--offset", String(record.offset), "--max-messages", "1"].map(quoted).join(" ");
  }

  async function copy(text) {
    try { await navigator.clipboard.writeText(text); toast(`copied: ${text}`); } catch { ask("Copy this", [{ name: "text", label: "Command", kind: "textarea", value: text }], { button: "Done", send: async () => {} }); }
  }

  function produce(record = null) {
    const again = record && !record.value.cut && record.value.kind !== "hex" && record.value.kind !== "avro" ? record : null;
    if (record && !again) { toast("only text that is shown in full can be sent again here: use Replay", true); return; }
    ask(`Produce to ${topic.name}`, [
      { name: "key", label: "Key (empty: none)", value: again && again.key.kind !== "null" ? again.key.text : "" },
      { name: "value", label: "Value", kind: "textarea", value: again ? again.value.text : "" },
      { name: "encoding", label: "The value is", options: [["text", "text or JSON"], ["hex", "hex"], ["base64", "base64"], ["null", "null (a tombstone)"]] },
      { name: "headers", label: "Headers, one NAME=VALUE per line", kind: "textarea" },
      { name: "partition", label: "Partition", options: [["", "by key"], ...topic.partition_rows.map((each) => [String(each.partition), String(each.partition)])] },
    ], {
      button: "Send",
      send: async (values) => {
        const headers = values.headers.split("\n").filter((line) => line.includes("="))
          .map((line) => ({ name: line.slice(0, line.indexOf("=")).trim(), value: line.slice(line.indexOf("=") + 1) }));
        const sent = await post(`/api/change/produce/${path}`, { key: values.key === "" ? null : values.key, headers,
          value: values.encoding === "null" ? null : values.value, value_encoding: values.encoding === "null" ? "text" : values.encoding,
          partition: values.partition === "" ? null : Number(values.partition) });
        toast(`sent: partition ${sent.partition}, offset ${count(sent.offset)}`);
        if (tail.getAttribute("aria-pressed") !== "true") browse();
      },
    });
  }

  function replay() {
    ask(`Replay ${topic.name} to another topic`, [
      { name: "target", label: "To topic (must exist)", required: true },
      { name: "partition", label: "Partition", options: [["", "all"], ...topic.partition_rows.map((each) => [String(each.partition), String(each.partition)])], value: field(partition).value },
      { name: "from", label: "From offset (empty: the first)", inputmode: "numeric" },
      { name: "to", label: "To offset, exclusive (empty: the current end)", inputmode: "numeric" },
      { name: "filter", label: "Only messages that match this filter", value: filter.value },
      { name: "keep", label: "keep partitions", kind: "checkbox" },
    ], {
      button: "Replay",
      send: async (values) => {
        const given = (text, otherwise) => (text.trim() ? whole(text, "an offset") : otherwise);
        const chosen = topic.partition_rows.filter((each) => values.partition === "" || String(each.partition) === values.partition);
        const ranges = chosen.map((each) => ({ partition: each.partition, from: given(values.from, 0), to: given(values.to, Number.MAX_SAFE_INTEGER) }));
        await post(`/api/change/replay/${path}`, { target: values.target.trim(), ranges, filter: values.filter, keep_partitions: values.keep });
        toast(`the replay to ${values.target} has started`);
      },
    });
  }

  browse();
  return () => reading.abort();
}
