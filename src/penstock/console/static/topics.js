// All topics. The server searches and sorts them, a page at a time; only visible rows are drawn.
import { get, post } from "./api.js";
import { ask, count, every, fill, h, later, rate, size, toast, whole } from "./dom.js";

const ROW = 38;
const PAGE = 100;

export function topics(main) {
  const state = { search: "", sort: "name", descending: false, internal: false, total: 0, rows: new Map(), asked: new Set(), round: 0, waiting: 0 };
  const search = h("input", { type: "search", placeholder: "Search topics ( / )", "aria-label": "Search topics",
    oninput: later(150, () => { state.search = search.value; again(true); }) });
  const internal = h("input", { type: "checkbox", onchange: () => { state.internal = internal.checked; again(true); } });
  const space = h("div", { class: "space" });
  const list = h("div", { class: "list", tabindex: "0", "aria-label": "Topics", onscroll: () => draw() }, space);
  const total = h("span", { class: "soft", id: "topic-total" });
  const column = (name, text, minor) => h("button", { class: minor ? "minor" : "", onclick: () => sort(name) }, text);
  main.append(h("h1", {}, "Topics"),
    h("div", { class: "bar" }, h("div", { class: "grow" }, search),
      h("label", { class: "inline" }, internal, "internal topics"),
      h("button", { class: "primary", onclick: create }, "Create topic")),
    h("div", { class: "head" }, column("name", "topic"), column("partitions", "partitions"), h("span", { class: "minor" }, "replicas"),
      column("size", "on disk"), column("rate", "written", true), h("span", { class: "minor" }, "health")),
    list, h("p", {}, total));

  function sort(name) {
    state.descending = state.sort === name ? !state.descending : name !== "name";
    state.sort = name;
    again(true);
  }

  function again(top = false) {
    state.rows.clear();
    state.asked.clear();
    state.round += 1;
    if (top) list.scrollTop = 0;
    load(Math.floor(list.scrollTop / ROW / PAGE));
  }

  async function load(page) {
    if (state.asked.has(page)) return;
    state.asked.add(page);
    state.waiting += 1;
    const round = state.round;
    try {
      const found = await get("/api/topics", { search: state.search, sort: state.sort, descending: state.descending,
        internal: state.internal, offset: page * PAGE, limit: PAGE });
      if (round !== state.round) return;  // another question was asked meanwhile
      state.total = found.total;
      found.topics.forEach((topic, at) => state.rows.set(page * PAGE + at, topic));
      total.textContent = `${count(found.total)} ${found.total === 1 ? "topic" : "topics"}`;
      draw();
    } catch (error) {
      state.asked.delete(page);
      toast(error.message, true);
    } finally { state.waiting -= 1; }
  }

  function draw() {
    space.style.height = `${state.total * ROW}px`;
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
    const last = Math.min(state.total, first + Math.ceil(list.clientHeight / ROW) + 10);
    const rows = [];
    for (let at = first; at < last; at += 1) {
      const topic = state.rows.get(at);
      if (topic) rows.push(row(topic, at));
      else load(Math.floor(at / PAGE));
    }
    // The row that has the keyboard keeps it while others come and go.
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    fill(space, rows.length || state.total ? rows : h("p", { class: "soft" }, state.search ? "no topic matches" : "no topics yet: create one"));
    if (focused) for (const link of space.querySelectorAll("a")) if (link.getAttribute("href") === focused) link.focus({ preventScroll: true });
  }

  function row(topic, at) {
    const health = topic.offline ? `${topic.offline} without a leader` : topic.under_replicated ? `${topic.under_replicated} under-replicated` : "ok";
    const line = h("div", { class: "row" }, h("a", { href: `#/topics/${encodeURIComponent(topic.name)}` }, topic.name),
      h("span", {}, count(topic.partitions)), h("span", { class: "minor" }, topic.replication_factor),
      h("span", {}, size(topic.size_bytes)), h("span", { class: "minor" }, rate(topic.records_per_s)),
      h("span", { class: health === "ok" ? "minor soft" : "minor bad" }, health));
    line.style.top = `${at * ROW}px`;
    return line;
  }

  function create() {
    ask("Create a topic", [
      { name: "name", label: "Name", required: true, pattern: "[a-zA-Z0-9._\\-]{1,249}" },
      { name: "partitions", label: "Partitions (empty: the brokers' default)", inputmode: "numeric" },
      { name: "replicas", label: "Replicas (empty: the brokers' default)", inputmode: "numeric" },
      { name: "configs", label: "Settings, one NAME=VALUE per line", kind: "textarea" },
    ], {
      button: "Create",
      send: async (values) => {
        const configs = {};
        for (const line of values.configs.split("\n").map((each) => each.trim()).filter(Boolean)) {
          const at = line.indexOf("=");
          if (at < 1) throw new Error(`write ${line} as NAME=VALUE`);
          configs[line.slice(0, at).trim()] = line.slice(at + 1).trim();
        }
        const given = (text, name) => (text.trim() ? whole(text, name) : null);
        await post("/api/change/topic", { name: values.name, partitions: given(values.partitions, "partitions"),
          replicas: given(values.replicas, "replicas"), configs });
        toast(`topic ${values.name} was created`);
        again(false);
      },
    });
  }

  again(true);
  return { leave: every(5000, () => { if (!state.waiting) again(false); }) };
}
